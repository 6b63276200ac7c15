"""Copies of a busy model's worker, in a stage of three devices: who asks, computes, ends and stands in for whom."""

import threading
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns

import pytest

from sie_triton.contract.spec import Runtime
from sie_triton.errors import LoadError
from sie_triton.pipeline.limits import CopyLimits, StageLimits
from sie_triton.pipeline.stages import inference as module
from sie_triton.pipeline.stages.inference import Inference
from sie_triton.pipeline.stages.request import DEFERRED
from sie_triton.pipeline.worker.handle import WorkerDied
from sie_triton.pipeline.worker.messages import Load
from sie_triton.records.grants import EVICTED, Granted, answer_path, grant_of
from sie_triton.records.status import RESIDENT, StatusWriter, process_of, records_of
from sie_triton.system.host.footprint import ACTIVATION_BYTES
from sie_triton.system.processes.pids import ProcessId
from tests.support.controller import wait_for
from tests.support.stages import EchoWorker, run, spec, tokens

DEVICES = ["cuda:0", "cuda:1", "cuda:2"]
SECOND = 1_000_000_000
SIZE = 700  # bytes of a worker


class Worker(EchoWorker):
    """Worker whose passes wait for `may_go`; once it has ended, its passes end, too."""

    loaded = replace(EchoWorker.loaded, device_bytes=SIZE, sub_batch_cost=50)

    def __init__(self):
        super().__init__()
        self.ended, self.running = threading.Event(), set()
        self.may_go.clear()

    def forward(self, batch, threads):
        self.running.add(id(batch))
        wait_for(lambda: self.may_go.is_set() or self.ended.is_set())
        self.running.discard(id(batch))
        if self.ended.is_set():
            raise WorkerDied("the worker process ended")
        return super().forward(batch, threads)

    def end(self):
        self.is_alive = False
        self.ended.set()


class FakeLoader:
    """Loader of workers in this process; `failure` fails the load of a copy."""

    def __init__(self):
        self.own, self.copies = [], []
        self.failure = None

    def order(self, *_):
        return Load("{}", Path(), "cuda:0", Path(), Path(), 2, 1)

    def start(self, order, check):
        self.own.append(Worker())
        return self.own[-1]

    def start_copy(self, copy, device, check, measured):
        copy.has_worker(ProcessId.of(copy.pid))
        check()
        if self.failure:
            raise self.failure
        self.copies.append(Worker())
        return self.copies[-1]

    def close(self):
        pass


class Stage:
    """Warm stage whose copies are looked after by `look` alone, by a clock that only this object puts forward."""

    def __init__(self, directory, devices=DEVICES, max_copies=64):
        limits = StageLimits(copies=CopyLimits(look_s=3600))
        self.status = StatusWriter(directory, "m", "inference", 0)
        self.inference = Inference(spec(runtime=Runtime(max_copies=max_copies)), ",".join(devices), self.status, limits)
        self.inference._loader = self.inference._copies._loader = self.loader = FakeLoader()
        self.copies, self._now_ns = self.inference._copies, monotonic_ns()
        self.copies._clock = lambda: self._now_ns
        self.inference.warm_up()
        self.requests = []

    @property
    def worker(self):
        return self.loader.own[-1]

    def later(self, seconds):
        self._now_ns += seconds * SECOND

    def send(self, count):
        """Send requests of which each takes a pass."""
        sent = [tokens([number] * 40) for number in range(1, count + 1)]
        assert self.inference.execute(sent) == [DEFERRED] * count
        self.requests += sent

    def asking(self):
        return [each for each in records_of(self.status.directory, "m", "inference") if each["wanted_bytes"]]

    def held(self):
        found = records_of(self.status.directory, "m", "inference")
        return [(each["device"], each["device_bytes"]) for each in found if each["copy"] and each["state"] == RESIDENT]

    def answer(self, text, number=1):
        answer_path(self.status.directory, int(self.status.record["pid"]), number).write_text(text)

    def crowd(self, seconds=3):
        """Send more than the workers compute at once, and let it wait so long."""
        self.send(6)
        scheduler = self.inference._scheduler
        wait_for(lambda: scheduler._idle <= 0 and scheduler.crowded_since_ns)
        self._now_ns = max(self._now_ns, scheduler.crowded_since_ns)
        self.later(seconds)

    def get_copy(self, device="cuda:1", number=1):
        self.copies.look()
        self.answer(grant_of(device), number)
        self.copies.look()
        return self.loader.copies[-1]

    def release(self, *workers):
        for worker in workers or (*self.loader.own, *self.loader.copies):
            worker.may_go.set()

    def check_answers(self):
        """Check that every request was answered, and right."""
        for request in self.requests:
            first, length = request.answer(DEFERRED)["dense"][0].tolist()
            assert length == 40
            assert first in range(1, 7)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "expected_bytes", lambda _: SIZE)
    monkeypatch.setattr(module, "granted_memory", lambda *_: nullcontext(Granted("cuda:0")))
    stage = Stage(tmp_path)
    yield stage
    stage.release()
    if not stage.inference.closing.is_set():
        stage.inference.close()


def test_a_crowded_model_asks_for_what_its_worker_takes_and_computes_on_the_copy_too(stage):
    stage.crowd(seconds=2)
    stage.copies.look()
    assert stage.asking() == []
    stage.later(1)
    stage.copies.look()
    (asking,) = stage.asking()
    assert (asking["wanted_bytes"], asking["copy"]) == (SIZE + ACTIVATION_BYTES, 1)
    assert process_of(asking) == process_of(stage.status.record)
    stage.copies.look()
    assert stage.loader.copies == []
    stage.answer(grant_of("cuda:1"))
    stage.copies.look()
    assert stage.held() == [(1, SIZE)]
    assert stage.asking() == []
    (copy,) = stage.loader.copies
    wait_for(lambda: len(copy.running) == 2)
    assert len(stage.worker.running) == 2
    stage.release()
    stage.check_answers()


@pytest.mark.parametrize(("devices", "is_deferred"), [(DEVICES, True), (DEVICES[:1], False)])
def test_a_full_batch_of_little_requests_is_deferred_where_a_copy_may_be(tmp_path, devices, is_deferred):
    """It would hide from the stage that more requests wait in Triton."""
    stage = Stage(tmp_path, devices)
    stage.inference._max_requests = 2
    stage.release()
    few, full = [tokens([1])], [tokens([1]), tokens([2])]
    for requests in (few, full):
        run(stage.inference, requests)
    assert [request.is_deferred for request in (*few, *full)] == [False, is_deferred, is_deferred]
    stage.inference.close()


def test_each_copy_more_is_asked_for_on_its_own_until_each_device_has_one(stage):
    stage.crowd()
    stage.get_copy("cuda:1")
    stage.copies.look()
    assert stage.asking() == []  # the queue must be too long with the new copy, too
    stage.crowd()
    stage.get_copy("cuda:2", 2)
    assert sorted(stage.held()) == [(1, SIZE), (2, SIZE)]
    for _ in range(2):
        stage.crowd()
    stage.copies.look()
    assert stage.asking() == []
    stage.release()
    stage.check_answers()


def test_a_wish_ends_with_the_crowd(stage):
    stage.crowd()
    stage.copies.look()
    assert stage.asking()
    stage.release()
    stage.check_answers()
    wait_for(lambda: not stage.inference._scheduler.crowded_since_ns)
    stage.copies.look()
    assert stage.asking() == []


@pytest.mark.parametrize(("devices", "most"), [(["cuda:0"], 64), (["cpu"], 64), (DEVICES, 0)])
def test_a_model_with_one_device_or_without_copies_never_asks(tmp_path, monkeypatch, devices, most):
    monkeypatch.setattr(module, "expected_bytes", lambda _: SIZE)
    monkeypatch.setattr(module, "granted_memory", lambda *_: nullcontext(Granted(devices[0])))
    stage = Stage(tmp_path, devices, max_copies=most)
    stage.copies.start()
    assert stage.copies._sweep._thread is None
    stage.release()
    stage.inference.close()


def test_a_copy_that_is_taken_ends_after_its_passes(stage):
    """Its lanes end, the other worker goes on, and the model does not ask again for a while."""
    stage.crowd()
    copy = stage.get_copy()
    wait_for(lambda: len(copy.running) == 2)
    stage.answer(EVICTED)
    looking = threading.Thread(target=stage.copies.look)
    looking.start()
    wait_for(lambda: not stage.copies._held)
    assert not copy.closed
    stage.release(stage.worker)
    wait_for(lambda: sum(bool(request.answers) for request in stage.requests) == 4)
    stage.release()
    looking.join()
    assert stage.inference._scheduler.num_workers == 1
    stage.check_answers()
    assert (copy.closed, stage.worker.closed, stage.held()) == (True, False, [])
    stage.worker.may_go.clear()
    stage.crowd()
    stage.copies.look()
    assert stage.asking() == []
    stage.later(30)
    stage.copies.look()
    assert stage.asking()


def test_an_idle_copy_goes(stage):
    stage.crowd()
    copy = stage.get_copy()
    stage.later(100)
    wait_for(lambda: copy.running)
    stage.copies.look()
    assert stage.held()  # it has passes
    stage.release()
    stage.check_answers()
    wait_for(lambda: not stage.copies._passes)
    stage.later(59)
    stage.copies.look()
    assert stage.held()
    stage.later(1)
    stage.copies.look()
    assert (stage.held(), copy.closed) == ([], True)


def test_what_a_copy_computed_when_it_ended_is_computed_again(stage):
    """The other worker goes on meanwhile, and none is loaded in its place; the copy is asked for again."""
    stage.crowd()
    copy = stage.get_copy()
    wait_for(lambda: len(copy.running) == 2)
    stage.later(30)
    copy.end()
    stage.inference._died(copy)
    assert stage.held() == []
    stage.crowd()
    stage.copies.look()
    assert stage.asking()
    stage.release()
    stage.check_answers()
    assert (len(stage.loader.own), stage.worker.closed, copy.closed) == (1, False, True)
    assert stage.status.record["num_replaced"] == 0


def test_a_copy_that_soon_ends_is_not_asked_for_again_for_a_while(stage):
    stage.crowd()
    copy = stage.get_copy()
    copy.end()
    stage.inference._died(copy)
    for seconds, is_asked_for in ((3, False), (30, True)):
        stage.crowd(seconds)
        stage.copies.look()
        assert bool(stage.asking()) == is_asked_for
    stage.release()
    stage.check_answers()


def test_a_copy_stands_in_for_the_worker_that_has_ended(stage):
    stage.crowd()
    copy = stage.get_copy("cuda:2")
    wait_for(lambda: len(copy.running) == 2)
    stage.worker.end()
    stage.inference._died(stage.worker)
    record = stage.status.record
    assert stage.inference._loaded is copy
    assert (record["device"], record["device_bytes"], record["worker_pid"]) == (2, SIZE, record["pid"])
    assert (record["state"], record["num_replaced"], stage.held()) == (RESIDENT, 1, [])
    stage.release()
    stage.check_answers()
    assert (len(stage.loader.own), copy.closed) == (1, False)
    stage.inference._died(stage.worker)  # reported twice: by a lane, and by the thread that watches
    assert stage.inference._loaded is copy


def test_a_copy_that_cannot_be_loaded_fails_nothing(stage):
    stage.crowd()
    stage.loader.failure = LoadError("no memory", "out of memory")
    stage.copies.look()
    stage.answer(grant_of("cuda:1"))
    stage.copies.look()
    assert records_of(stage.status.directory, "m", "inference")[1:] == []
    assert not [*stage.status.directory.glob("*.grant")]
    stage.copies.look()
    assert stage.asking() == []
    stage.release()
    stage.check_answers()


def test_a_copy_whose_memory_is_taken_while_it_loads_ends(stage):
    stage.crowd()
    stage.copies.look()
    stage.answer(grant_of("cuda:1"))
    start_copy = stage.loader.start_copy

    def taken(copy, device, check, measured):
        stage.answer(EVICTED)
        return start_copy(copy, device, check, measured)

    stage.loader.start_copy = taken
    stage.copies.look()
    assert (stage.loader.copies, stage.held()) == ([], [])


def test_all_copies_end_with_the_process(stage):
    stage.crowd()
    copy = stage.get_copy()
    stage.release()
    stage.inference.close()
    assert copy.closed
    assert len(records_of(stage.status.directory, "m", "inference")) == 1
