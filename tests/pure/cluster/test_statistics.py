"""Statistics of several Tritons as those of one."""

from tritonclient.grpc import service_pb2

from sie_triton.cluster.gateway.kserve import summed


def statistics(name: str, count: int, last: int, batches: dict[int, int]) -> service_pb2.ModelStatisticsResponse:
    response = service_pb2.ModelStatisticsResponse()
    model = response.model_stats.add(name=name, version="1", last_inference=last, inference_count=count)
    model.inference_stats.success.count, model.inference_stats.success.ns = count, count * 1000
    for size, number in batches.items():
        model.batch_stats.add(batch_size=size).compute_infer.count = number
    return response


def test_counts_and_times_are_added_by_model_and_batch_size():
    one, other = statistics("m", 3, 50, {1: 3}), statistics("m", 4, 40, {1: 2, 2: 1})
    other.MergeFrom(statistics("n", 1, 1, {}))
    total = service_pb2.ModelStatisticsResponse.FromString(summed([one.SerializeToString(), other.SerializeToString()]))
    expected = statistics("m", 7, 50, {1: 5, 2: 1})
    expected.MergeFrom(statistics("n", 1, 1, {}))
    assert total == expected


def test_one_worker_stays_as_it_is():
    one = statistics("m", 3, 50, {1: 3}).SerializeToString()
    assert summed([one]) == one
