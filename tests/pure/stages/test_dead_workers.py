"""A worker ends in the middle of passes: which jobs run again, in what company, and which one gets the error."""

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from sie_triton.errors import ModelError
from sie_triton.families.shared.token_batch import tokens as tokens_of
from sie_triton.records.status import StatusWriter
from sie_triton.scheduling.job import Job
from sie_triton.stages.deadly import MAX_KNOWN, REFUSED_S, DeadlyRequests
from sie_triton.stages.inference import Inference
from sie_triton.stages.request import DEFERRED
from sie_triton.worker.process import StoppedTwice, WorkerDied
from tests.support.stages import OPEN, EchoWorker, run, spec, tokens

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
        runtime = replace(OPEN, cpu_threads=num_lanes)
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


def test_the_same_request_again_ends_no_worker_for_a_while(make):
    """Another request is computed meanwhile; after a while this one is tried again."""
    stage, now = make(1), [0.0]
    stage._desk.deadly = DeadlyRequests(lambda: now[0])
    assert isinstance(run(stage, [tokens([POISON] * 10)])[0], ModelError)
    num_workers = len(stage.workers)
    refused, other, good = run(stage, [tokens([POISON] * 10), tokens([3] * 10), tokens([1] * 10)])
    assert isinstance(refused, ModelError)
    assert str(refused).endswith("ended twice while it computed this request, less than 60 s ago")
    assert [each["dense"].tolist() for each in (other, good)] == [[[3, 10]], [[1, 10]]]
    assert len(stage.workers) == num_workers
    now[0] = REFUSED_S
    assert isinstance(run(stage, [tokens([POISON] * 10)])[0], ModelError)
    assert len(stage.workers) == num_workers + 2


def test_only_so_many_requests_are_remembered():
    deadly, jobs = DeadlyRequests(lambda: 0.0), [Job({}, [False], [each], lora=str(each)) for each in range(300)]
    for job in jobs:
        deadly.add(job)
    deadly.check(jobs[300 - MAX_KNOWN - 1])
    with pytest.raises(ModelError, match="ended twice"):
        deadly.check(jobs[300 - MAX_KNOWN])


def test_a_poisonous_request_spoils_none_on_another_lane(make):
    """Passes that a worker did not survive are repeated one at a time, so that none is in two by chance."""
    stage = make(2)
    requests = [tokens([POISON] * 40), tokens([1] * 40)]
    assert stage.execute(requests) == [DEFERRED] * 2
    bad, good = (request.answer(DEFERRED) for request in requests)
    assert isinstance(bad, ModelError)
    assert good["dense"].tolist() == [[1, 40]]


def test_a_process_is_stopped_when_two_polls_in_a_row_say_so():
    """A debugger stops a process for a moment."""
    process = SimpleNamespace(is_stopped=True)
    stopped, found = StoppedTwice(process), []
    for process.is_stopped in (True, False, True, True):
        found.append(stopped.look())
    assert found == [False, False, False, True]
