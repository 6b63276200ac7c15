"""The stage of a model that a remote server computes: its requests, and the attribution of errors."""

from pathlib import Path

import pytest

from sie_triton.contract.spec import Endpoint as Where
from sie_triton.errors import EndpointAway, EndpointBusy, InputError, LoadError
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.stages.inference import Inference
from sie_triton.records.status import StatusWriter, is_remote
from tests.support.openai_endpoint import Endpoint
from tests.support.stages import run, spec, tokens

REFUSED = 13


def vectors(items):
    return [[float(item[0]), float(len(item))] for item in items]


@pytest.fixture
def endpoint():
    with Endpoint(vectors) as endpoint:
        endpoint.refuses = REFUSED
        yield endpoint


@pytest.fixture
def stage(endpoint, tiny_directory, tmp_path, request, tokenizers_made_here):
    """An inference stage with the real worker process; its device, even a missing GPU, may be a parameter."""
    where = Where(endpoint.url, "there")
    there = spec(weights=str(tiny_directory), engine="remote", endpoint=where, max_batch_cost=8 * 40)
    stage = Inference(there, getattr(request, "param", "cpu"), StatusWriter(tmp_path, "m", "inference", 0))
    yield stage
    stage.close()


@pytest.mark.parametrize("stage", ["cpu", "cuda:0"], indirect=True)
def test_a_remote_worker_takes_and_requests_no_memory(stage, endpoint):
    (answer,) = run(stage, [tokens([3, 4])])
    assert answer["dense"].tolist() == [[3, 2]]
    record = stage.status.record
    assert is_remote(record)
    assert (record["weights_bytes"], record["device_bytes"], record["wanted_since_ns"]) == (0, 0, 0)
    maps = Path(f"/proc/{record['worker_pid']}/maps").read_text()
    assert "orjson" in maps
    assert "libtorch" not in maps
    dim, own = (asked["input"] for _, asked in endpoint.asked)
    assert ([len(each) for each in dim], own) == ([2, 2], [[3, 4]])


def test_concurrent_endpoint_requests_are_limited_in_number_and_size(stage, endpoint):
    run(stage, [tokens([1])])
    endpoint.delay_s = 0.2
    (answer,) = run(stage, [tokens(*[[i % 10] * 10 for i in range(50)])])
    assert answer["dense"][:, 0].tolist() == [i % 10 for i in range(50)]
    assert endpoint.most_at_once == 8
    assert max(sum(map(len, asked["input"])) for _, asked in endpoint.asked) <= 40


def test_a_text_that_the_endpoint_refuses_spoils_no_other_request(stage, endpoint):
    run(stage, [tokens([1])])
    before = len(endpoint.asked)
    endpoint.delay_s = 0.1
    requests = [tokens([i]) for i in (REFUSED, 5, 6) * 8]
    bad, *good = run(stage, requests)[:3]
    assert isinstance(bad, InputError)
    assert "answers 400, the input is longer than the context" in str(bad)
    assert [answer["dense"][0, 0] for answer in good] == [5, 6]
    assert len(endpoint.asked) - before > 8  # some were requested together, and then again separately


@pytest.mark.parametrize(("trouble", "kind", "seconds"), [("429", EndpointBusy, 7), ("away", EndpointAway, 1)])
def test_an_away_or_busy_endpoint_recovers_without_a_new_worker(stage, endpoint, trouble, kind, seconds):
    run(stage, [tokens([1])])
    worker = int(stage.status.record["worker_pid"])
    if trouble == "away":
        endpoint.stop()
    endpoint.trouble = trouble
    (answer,) = run(stage, [tokens([2])])
    assert (type(answer), answer.retry_after_s) == (kind, seconds)
    assert "retry in" in str(answer)
    if trouble == "away":
        endpoint.start()
    endpoint.trouble = ""
    (answer,) = run(stage, [tokens([2])])
    assert answer["dense"].tolist() == [[2, 1]]
    assert stage.status.record["worker_pid"] == worker


def test_a_model_whose_endpoint_is_away_loads_when_it_is_back(stage, endpoint):
    stage.limits = StageLimits(retry_load_s=0.0)
    endpoint.stop()
    (answer,) = run(stage, [tokens([2])])
    assert isinstance(answer, LoadError)
    assert (answer.reason, "the endpoint does not answer" in str(answer)) == ("network", True)
    endpoint.start()
    (answer,) = run(stage, [tokens([2])])
    assert answer["dense"].tolist() == [[2, 1]]
