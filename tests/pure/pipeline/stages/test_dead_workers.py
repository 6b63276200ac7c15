"""A worker ends in the middle of passes: which jobs run again, in what company, and which one gets the error."""

import threading
from types import SimpleNamespace

import pytest

from sie_triton.contract.spec import Runtime
from sie_triton.errors import LoadError, ModelError, ModelLoading
from sie_triton.models.families.shared.token_batch import tokens as tokens_of
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.scheduling.job import Job
from sie_triton.pipeline.stages.inference import Inference
from sie_triton.pipeline.stages.inference_job import Quarantine
from sie_triton.pipeline.stages.request import DEFERRED
from sie_triton.pipeline.worker.handle import StoppedTwice, WorkerDied
from sie_triton.records.status import StatusWriter
from tests.support.controller import wait_for
from tests.support.stages import EchoWorker, run, spec, tokens

POISON = 14


class Mortal(EchoWorker):
    """Worker that POISON ends, for all passes that run on it; every other pass lasts longer than that takes."""

    def __init__(self):
        super().__init__()
        self.is_alive, self.ended = True, threading.Event()

    def forward(self, batch, threads):
        if POISON in tokens_of(batch)[0]:
            self.ended.wait(0.1)
            self.is_alive = False
            self.ended.set()
        if self.ended.wait(0.3):
            raise WorkerDied
        return super().forward(batch, threads)


@pytest.fixture
def make(tmp_path):
    """Make a warm stage of so many lanes; `workers` are all that it has had."""
    stages = []

    def made(num_lanes):
        runtime = Runtime(cpu_threads=num_lanes)
        stage = Inference(spec(runtime=runtime), "cpu", StatusWriter(tmp_path, "m", "inference", 0))
        stage.workers = []
        stage.load = lambda: stage.workers.append(Mortal()) or stage.workers[-1]
        stage.warm_up()
        stages.append(stage)
        return stage

    yield made
    for stage in stages:
        stage.close()


def test_a_request_that_kills_its_workers_fails_alone(make):
    """They ran together once, then each by itself: the first pass and two of its own end three workers, no more."""
    stage = make(1)
    answers = run(stage, [tokens([each] * 10) for each in (1, POISON, 2)])
    assert [answer["dense"].tolist() for answer in (answers[0], answers[2])] == [[[1, 10]], [[2, 10]]]
    assert isinstance(answers[1], ModelError)
    assert "twice" in str(answers[1])
    assert len(stage.workers) == 4
    assert stage.status.record["num_replaced"] == 3
    assert [worker.closed for worker in stage.workers] == [True, True, True, False]


def test_no_worker_is_started_for_requests_that_are_answered(make):
    """They were answered at their deadlines, during the pass that the worker did not survive."""
    stage = make(1)
    stage._is_quick = False  # so that it defers them
    late = [tokens([each] * 10, timeout_us=200_000) for each in (1, 2)]

    def forward(*_):
        wait_for(lambda: all(each.answers for each in late))
        raise WorkerDied

    stage.workers[0].forward = forward
    assert stage.execute(late) == [DEFERRED, DEFERRED]
    wait_for(lambda: all(each.answers for each in late))
    wait_for(lambda: stage._scheduler._idle == 1)
    assert stage.status.record["num_replaced"] == 0
    assert len(stage.workers) == 1


def test_the_same_request_again_ends_no_worker_for_a_while(make):
    """Another request is computed meanwhile; after a while this one is tried again."""
    stage, now = make(1), [0.0]
    stage._codec.quarantine = Quarantine(StageLimits(), lambda: now[0])
    assert isinstance(run(stage, [tokens([POISON] * 10)])[0], ModelError)
    num_workers = len(stage.workers)
    refused, other, good = run(stage, [tokens([POISON] * 10), tokens([3] * 10), tokens([1] * 10)])
    assert isinstance(refused, ModelError)
    assert str(refused).endswith("ended twice while it computed this request, less than 60 s ago")
    assert [each["dense"].tolist() for each in (other, good)] == [[[3, 10]], [[1, 10]]]
    assert len(stage.workers) == num_workers
    now[0] = StageLimits.refused_s
    assert isinstance(run(stage, [tokens([POISON] * 10)])[0], ModelError)
    assert len(stage.workers) == num_workers + 2


def test_only_so_many_requests_are_remembered():
    quarantine, jobs = (
        Quarantine(StageLimits(num_refused=2), lambda: 0.0),
        [Job({}, [False], [i], lora=str(i)) for i in range(4)],
    )
    for job in jobs:
        quarantine.add(job)
    quarantine.check(jobs[1])
    with pytest.raises(ModelError, match="ended twice"):
        quarantine.check(jobs[2])


def test_a_poisonous_request_spoils_none_on_another_lane(make):
    """Passes that a worker did not survive are repeated one at a time, so that none is in two by chance."""
    stage = make(2)
    requests = [tokens([POISON] * 40), tokens([1] * 40)]
    assert stage.execute(requests) == [DEFERRED] * 2
    bad, good = (request.answer(DEFERRED) for request in requests)
    assert isinstance(bad, ModelError)
    assert good["dense"].tolist() == [[1, 40]]


@pytest.fixture
def queue(make):
    """Queue two requests on one lane: the worker dies with the first; return the stage and both."""

    def queued():
        stage = make(1)
        stage._loaded = stage.workers[0] = worker = EchoWorker()
        worker.deaths = 1
        worker.may_go.clear()
        requests = [tokens([each] * 40) for each in (1, 2)]
        assert stage.execute(requests[:1]) == [DEFERRED]
        wait_for(lambda: worker.batches)
        assert stage.execute(requests[1:]) == [DEFERRED]
        return stage, requests

    return queued


def refuse(error):
    raise error


@pytest.mark.parametrize("has_failed", [False, True])
def test_queued_requests_may_be_retried_if_the_replacement_of_a_worker_is_evicted(queue, has_failed):
    """An earlier load may have failed; it is over since a load has succeeded."""
    stage, requests = queue()
    evicted = ModelLoading("evicted")
    if has_failed:
        load, stage.load = stage.load, lambda: refuse(LoadError("no network", "network"))
        stage.warm_up()
        stage.load = load
        stage._load().close()
    stage.load = lambda: refuse(evicted)
    stage.workers[0].may_go.set()
    first, second = (request.answer(DEFERRED) for request in requests)
    assert first is evicted
    assert isinstance(second, ModelLoading)
    assert str(second) == "the model is not in memory any more; retry"


def test_queued_requests_get_the_error_of_the_load_that_failed(queue):
    stage, requests = queue()
    stage.load = lambda: refuse(LoadError("no network", "network"))
    stage.workers[0].may_go.set()
    assert {request.answer(DEFERRED).kind for request in requests} == {"load.network"}


def test_open_requests_get_another_worker_though_the_process_has_a_successor(queue):
    """The thread that watches the worker is faster than the lane."""
    stage, requests = queue()
    stage.status.has_successor = lambda: True
    stage._died(stage.workers[0])
    stage.workers[0].may_go.set()
    assert [request.answer(DEFERRED)["dense"].tolist() for request in requests] == [[[1, 40]], [[2, 40]]]


def test_an_idle_process_with_a_successor_starts_no_other_worker(make):
    stage = make(1)
    stage.status.has_successor = lambda: True
    stage._died(stage.workers[0])
    assert (stage._loaded, len(stage.workers), stage.workers[0].closed) == (None, 1, True)
    assert run(stage, [tokens([1] * 10)])[0]["dense"].tolist() == [[1, 10]]


def test_a_process_is_stopped_when_two_polls_in_a_row_say_so():
    """A debugger stops a process for a moment."""
    process = SimpleNamespace(is_stopped=True)
    stopped, found = StoppedTwice(process), []
    for process.is_stopped in (True, False, True, True):
        found.append(stopped.look())
    assert found == [False, False, False, True]
