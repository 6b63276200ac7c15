"""Inference at its own interface: counters, order of execution, and status after loading."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from sie_triton.contract.spec import Runtime
from sie_triton.pipeline.stages import inference as module
from sie_triton.pipeline.stages.inference import Inference
from sie_triton.pipeline.stages.request import DEFERRED
from sie_triton.pipeline.worker.messages import Load
from sie_triton.records import status as records
from sie_triton.records.grants import Granted
from sie_triton.records.status import StatusWriter
from tests.support.controller import wait_for
from tests.support.stages import EchoWorker, opened, run, spec, tokens

MS = 1_000_000


def made(directory, device="cpu", **changes) -> Inference:
    """Return a stage; by default with one lane, so that the scheduler alone decides the order."""
    changes = {"runtime": Runtime(cpu_threads=1), **changes}
    stage = Inference(spec(**changes), device, StatusWriter(directory, "m", "inference", 0))
    stage.worker = EchoWorker()
    return stage


@pytest.fixture
def stage(tmp_path, request) -> Iterator[Inference]:
    """Warm stage; indirect parameters are keyword arguments of `made`."""
    stage = made(tmp_path, **getattr(request, "param", {}))
    stage.load = lambda: stage.worker
    stage.warm_up()
    yield stage
    stage.worker.may_go.set()
    stage.close()


def held(stage, *requests):
    """Queue `requests` in order behind a pass that lasts until `stage.worker.may_go` is set."""
    stage.worker.may_go.clear()
    stage.execute([tokens([1] * 30)])
    wait_for(lambda: stage.worker.batches)
    for request in requests:
        assert stage.execute([request]) == [DEFERRED]


# --- order of execution


@pytest.mark.parametrize("stage", [{"runtime": Runtime(cpu_threads=2)}], indirect=True)
def test_two_lanes_have_half_of_what_runs_at_once_each(stage):
    (answer,) = run(stage, [tokens(*[[7] * 10] * 20)])
    assert answer["dense"].tolist() == [[7, 10]] * 20
    assert stage.worker.batches == [50] * 4


@pytest.mark.parametrize("stage", [{"max_batch_cost": 50}], indirect=True)
def test_a_long_item_alone_is_no_bulk_work(stage):
    """Bulk work would wait for later requests."""
    held(stage, tokens([7] * 60), *(tokens([8] * 40) for _ in range(3)))
    stage.worker.may_go.set()
    stage.close()
    assert stage.worker.batches == [30, 60, 40, 40, 40]


@pytest.mark.parametrize("stage", [{"max_batch_cost": 50}], indirect=True)
@pytest.mark.parametrize(("is_bulk", "order"), [(False, [30, 40, 35, 35]), (True, [30, 35, 40, 35])])
def test_a_small_request_gives_way_if_it_asks_to(stage, is_bulk, order):
    held(stage, tokens([7] * 40, fields={"is_bulk": is_bulk}), tokens([8] * 35), tokens([8] * 35))
    stage.worker.may_go.set()
    stage.close()
    assert stage.worker.batches == order


def test_a_dead_worker_is_not_replaced_while_triton_waits(stage):
    """`execute` defers the request, so that Triton can deliver the next batch."""
    stage.worker.is_alive = False
    request = tokens([7])
    assert stage.execute([request]) == [DEFERRED]
    assert request.answer(DEFERRED)["dense"].tolist() == [[7, 1]]


# --- counters


def test_only_what_shared_a_pass_counts_as_the_largest_sub_batch(stage):
    """A single long item, which may cost more, is not counted."""
    run(stage, [tokens([7] * 60)])
    assert stage.status.record["max_sub_batch_cost"] == 0
    run(stage, [tokens([7] * 10), tokens([8] * 10)])
    run(stage, [tokens([7] * 5), tokens([8] * 5)])
    assert stage.status.record["max_sub_batch_cost"] == 20
    assert stage.status.record["num_sub_batches"] == 3


def test_waiting_time_is_split_into_queueing_and_batching(stage, monkeypatch):
    """The request is preprocessed 2 ms before a pass of 10 ms, and runs 4 ms after it."""
    now = [10**12]
    for each in (module, records):
        monkeypatch.setattr(each, "monotonic_ns", lambda: now[0])
    forward = stage.worker.forward

    def pass_of_10_ms(batch, threads):
        now[0] += 10 * MS
        return forward(batch, threads)

    monkeypatch.setattr(stage.worker, "forward", pass_of_10_ms)
    start = now[0]
    run(stage, [tokens([7])])
    now[0] += 4 * MS
    times = {"arrived_ns": start - 5 * MS, "preprocessed_ns": start - 2 * MS}
    (answer,) = run(stage, [tokens([8], fields=times)])
    found = answer["context"]
    assert (found.arrived_ns, found.preprocessed_ns) == (start - 5 * MS, start - 2 * MS)
    assert (found.queue_ns, found.batch_wait_ns, found.inference_ns) == (10 * MS, 2 * MS + 4 * MS, 10 * MS)


# --- loading


class FakeLoader:
    """Loader that returns the stage's worker; `seen` has the status record during each load."""

    def __init__(self, stage, **loaded) -> None:
        self.seen: list[dict[str, int]] = []
        self.devices: list[str] = []
        self._stage = stage
        stage.worker.loaded = replace(EchoWorker.loaded, **loaded)

    def order(self, num_lanes, threads, report_progress):
        return Load("{}", Path(), "cpu", Path(), Path(), num_lanes, threads)

    def start(self, order, check):
        check()
        self.devices.append(order.device)
        self.seen.append({name: int(self._stage.status.record[name]) for name in ("granted_bytes", "weights_bytes")})
        return self._stage.worker

    def close(self) -> None:
        pass


@pytest.fixture
def loading(tmp_path, monkeypatch) -> Iterator[Inference]:
    """Cold stage of two lanes that expects to need 7 bytes."""
    monkeypatch.setattr(module, "expected_bytes", lambda _: 7)
    stage = made(tmp_path, runtime=Runtime(cpu_threads=2))
    yield stage
    stage.close()


@pytest.mark.parametrize(("measured", "used"), [(30, 30), (1000, 50), (0, 50)])
def test_sub_batch_size_is_limited_by_measurement_and_model_file(loading, measured, used):
    """The limit applies to each of two lanes."""
    loading._loader = FakeLoader(loading, sub_batch_cost=measured)
    num_items = 4 * used // 10
    (answer,) = run(loading, [tokens(*[[7] * 10] * num_items)])
    assert len(answer["dense"]) == num_items
    assert loading.worker.batches == [used] * 4


def quick(stage, cost_per_s, least_s=0.0):
    """Load a worker whose lanes compute that much per second, and let no time pass in `execute`."""
    stage._loader = FakeLoader(stage, sub_batch_cost=50, cost_per_s=cost_per_s, least_s=least_s)
    stage.warm_up()
    return [tokens([7] * 3), tokens([8] * 4), tokens([9] * 5), tokens([6] * 4)]


def test_quick_requests_run_together_in_the_call_that_brings_them(loading):
    """All four take a lane 4 ms: the limit is 1 ms a request."""
    requests = quick(loading, cost_per_s=4000.0)
    answers = [opened(answer) for answer in loading.execute(requests)]
    assert [answer["dense"].tolist() for answer in answers] == [[[7, 3]], [[8, 4]], [[9, 5]], [[6, 4]]]
    assert loading.worker.batches == [16]
    assert [request.is_deferred for request in requests] == [False] * 4
    assert loading.status.record["num_deferred"] == 0


@pytest.mark.parametrize(
    ("cost_per_s", "device", "budget"),
    [(3999.0, "cpu", 50), (0.0, "cpu", 50), (4000.0, "cuda:0", 50), (4000.0, "cpu", 15)],
    ids=["slow", "of unknown speed", "on a GPU", "more than fit"],
)
def test_other_requests_are_deferred(tmp_path, monkeypatch, cost_per_s, device, budget):
    """On a GPU only little work, a quarter of the budget, is not."""
    monkeypatch.setattr(module, "expected_bytes", lambda _: 7)
    stage = made(tmp_path, device=device, runtime=Runtime(cpu_threads=2))
    requests = quick(stage, cost_per_s)
    stage._budget_of_lanes = budget
    assert stage.execute(requests) == [DEFERRED] * 4
    for request in requests:
        assert request.answered.wait(60)
    stage.close()


def test_requests_that_waited_for_a_load_do_not_exceed_the_requests_of_a_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "expected_bytes", lambda _: 7)
    stage = made(tmp_path, runtime=Runtime(cpu_threads=2, max_batch_requests=2))
    stage._loader = FakeLoader(stage, sub_batch_cost=50, cost_per_s=4000.0)
    requests = [tokens([7]) for _ in range(6)]
    assert stage.execute(requests) == [DEFERRED] * 6
    for request in requests:
        assert request.answered.wait(60)
    assert max(stage.worker.batches) <= 2
    stage.close()


def test_a_short_request_of_several_items_is_not_divided_among_lanes(loading):
    quick(loading, cost_per_s=6000.0, least_s=0.001)
    (answer,) = run(loading, [tokens([7] * 3, [8] * 4, [9] * 5)])  # 1 + 2 ms
    assert answer["dense"].tolist() == [[7, 3], [8, 4], [9, 5]]
    assert loading.worker.batches == [12]
    request = tokens([7] * 3, [8] * 4, [9] * 6)
    assert loading.execute([request]) == [DEFERRED]
    assert request.answered.wait(60)
    assert sum(loading.worker.batches) == 25


@pytest.mark.parametrize(("least_s", "threads"), [(0.001, 1), (0.0011, 2)], ids=["undivided", "by both"])
def test_the_shortest_pass_counts_where_a_text_takes_one_lane(loading, monkeypatch, least_s, threads):
    """A pass over few tokens takes longer than their share of a large one: 12 tokens of a model of 12 layers."""
    used = []
    monkeypatch.setattr(loading, "_run", lambda _, threads: used.append(threads))
    quick(loading, cost_per_s=6000.0, least_s=least_s)
    loading.execute([tokens([7] * 12)])
    assert used == [threads]


def test_the_worker_is_on_the_device_that_its_load_was_granted(tmp_path, monkeypatch):
    grants = iter([Granted("cuda:1"), Granted("cuda:0")])
    monkeypatch.setattr(module, "expected_bytes", lambda _: 7)
    monkeypatch.setattr(module, "granted_memory", lambda *_: nullcontext(next(grants)))
    stage = made(tmp_path, "cuda:0,cuda:1")
    stage._loader = loader = FakeLoader(stage)
    for _ in range(2):  # a replacement asks again
        stage.load()
    assert loader.devices == ["cuda:1", "cuda:0"]
    stage.close()


def test_memory_stays_granted_until_the_adapters_are_loaded_again(loading, monkeypatch):
    """Otherwise another load is refused meanwhile: the model is neither loading nor one that could be evicted."""
    loading._loader = FakeLoader(loading)
    seen = []
    monkeypatch.setattr(loading._loras, "restore", lambda _: seen.append(int(loading.status.record["granted_bytes"])))
    loading.load()
    assert seen == [7]


def test_only_loads_after_start_up_ask_for_memory(loading):
    """Triton waits for the first load; the second replaces a dead worker."""
    loading._loader = loader = FakeLoader(loading, weights_bytes=5)
    loading.warm_up()
    assert loading.status.record["weights_bytes"] == 5
    loading.worker.deaths = 1
    (answer,) = run(loading, [tokens([7])])
    assert answer["dense"].tolist() == [[7, 1]]
    assert [seen["granted_bytes"] for seen in loader.seen] == [0, 7]
    # The dead worker's weights are not counted during the load.
    assert [seen["weights_bytes"] for seen in loader.seen] == [0, 0]
    assert loading.status.record["weights_bytes"] == 5
