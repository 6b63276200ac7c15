"""Distribution of memory among waiting loads, and the end of a load that hangs."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from time import monotonic_ns

import pytest

from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.memory import DeviceMemory
from sie_triton.errors import BusyError, LoadError
from sie_triton.pipeline.stages.cold_stage import ColdStage
from sie_triton.pipeline.stages.request import Origin
from sie_triton.records.grants import (
    CONTROLLER_LOCK,
    EVICTED,
    answer_path,
    controller_runs,
    grant_of,
    granted_memory,
    refusal,
)
from sie_triton.records.grants import answer_load as give
from sie_triton.records.status import COLD, FAILED, LOADING, RESIDENT, StatusWriter
from sie_triton.system.processes.pids import is_stopped
from tests.support.controller import round_of, stage, wait_for
from tests.support.limits import full_disk
from tests.support.stages import tokens

GRANTED = grant_of("cpu")
WAITED_NS = int((ControllerLimits.min_grant_wait_s + 1) * 1e9)


@pytest.fixture
def worker_bytes(monkeypatch):
    """Return the memory of workers in bytes, by pid."""
    taken = {}
    monkeypatch.setattr("sie_triton.controller.model_states.worker_bytes", lambda pid: taken.get(pid, 0))
    return taken


def verdict(controller, pid):
    path = answer_path(controller._directory, pid)
    return path.read_text() if path.exists() else None


def test_an_endless_load_delays_no_model_that_fits_beside_it(controller, pids):
    stuck, fits, too_much, later = pids
    stage(controller, "stuck", stuck, state=LOADING, granted_bytes=300)
    stage(controller, "fits", fits, state=LOADING, wanted_bytes=300, wanted_since_ns=monotonic_ns())
    stage(controller, "too-much", too_much, state=LOADING, wanted_bytes=300, wanted_since_ns=monotonic_ns())
    stage(controller, "later", later, state=LOADING, wanted_bytes=200, wanted_since_ns=monotonic_ns())
    for _ in range(3):  # a grant counts before the stage has seen it
        controller.tick()
    assert [verdict(controller, pid) for pid in (fits, too_much, later)] == [GRANTED, None, GRANTED]


def test_memory_already_taken_by_a_loader_is_not_counted_twice(controller, pids, worker_bytes):
    loader, other, worker, *_ = pids
    worker_bytes[worker] = 250
    controller.measured = DeviceMemory(250, 1000, "test")
    stage(controller, "loading", loader, state=LOADING, granted_bytes=300, worker_pid=worker)
    stage(controller, "other", other, state=LOADING, wanted_bytes=540)
    controller.tick()
    assert verdict(controller, other) == GRANTED


@pytest.fixture
def waits(controller, control, pids, worker_bytes):
    """The stage of the process pids[0], which wants 400 bytes; for it a model of 700 leaves, until `may_end` is set."""
    _, _, resident, worker = pids
    worker_bytes[worker] = 700
    controller.measured = DeviceMemory(700, 1000, "test")
    control.may_end.clear()
    stage(controller, "resident", resident, state=RESIDENT, worker_pid=worker)
    yield stage(controller, "large", pids[0], state=LOADING, wanted_bytes=400)
    control.may_end.set()


def test_a_load_for_which_memory_is_freed_is_not_overtaken_for_ever(controller, control, pids, waits):
    small = pids[1]
    stage(controller, "small", small, state=LOADING, wanted_bytes=100)
    waits.record["wanted_since_ns"] -= 20 * 10**9
    controller.tick()
    assert control.swapped == [("resident-inference", False)]
    assert verdict(controller, small) is None
    waits.record["wanted_since_ns"] = monotonic_ns() - 10**9
    controller.tick()
    assert verdict(controller, small) == GRANTED


def test_a_load_waits_for_memory_before_it_is_refused(controller, pids):
    controller.measured = DeviceMemory(900, 1000, "test")
    waits = stage(controller, "m", pids[0], state=LOADING, wanted_bytes=500)
    stage(controller, "huge", pids[1], state=LOADING, wanted_bytes=800)
    controller.tick()
    assert verdict(controller, pids[0]) is None
    waits.record["wanted_since_ns"] -= WAITED_NS
    controller.tick()
    reason, _, text = verdict(controller, pids[0]).partition("\n")
    assert reason == "out of memory"
    assert "need about 0.00 GiB, but now only 0.00 GiB can be freed: 85 % of 0.00 GiB (test)" in text
    assert verdict(controller, pids[1]) is None
    answer_path(controller._directory, pids[0]).unlink()
    controller.measured = DeviceMemory(100, 1000, "test")
    controller.tick()
    assert verdict(controller, pids[0]) == GRANTED
    assert verdict(controller, pids[1]).startswith("too large\n")


def test_a_load_is_refused_once_models_that_leave_have_not_left_for_long(controller, pids, waits):
    controller.tick()
    assert verdict(controller, pids[0]) is None
    waits.record["wanted_since_ns"] -= int(ControllerLimits.max_grant_wait_s * 1e9)
    controller.tick()
    reason, _, text = verdict(controller, pids[0]).partition("\n")
    assert reason == "out of memory"
    assert "which other models have not freed within 110 s" in text


def test_a_full_disk_ends_no_round_and_leaves_no_file(controller, pids, caplog):
    """Loads are answered as soon as there is room on the disk."""
    for name, pid in zip("ab", pids[:2], strict=True):
        stage(controller, name, pid, state=LOADING, wanted_bytes=100)
    before = set(controller._directory.iterdir())
    with full_disk():
        controller.tick()
    assert set(controller._directory.iterdir()) == before
    assert [message for message in caplog.messages if "cannot be answered now" in message]
    controller.tick()
    assert [verdict(controller, pid) for pid in pids[:2]] == [GRANTED, GRANTED]


def test_too_large_is_judged_by_the_smallest_server_memory(controller, pids):
    """A model is refused for good only if it did not fit into the smallest server either."""
    grown = DeviceMemory(500, 1000, "SIE_MEMORY_LIMIT_BYTES", server=500, least_server=100)
    controller._meters["cpu"].measure = lambda *_: grown
    for name, pid, wanted in (("m", pids[0], 400), ("huge", pids[1], 800)):
        stage(controller, name, pid, state=LOADING, wanted_bytes=wanted).record["wanted_since_ns"] -= WAITED_NS
    for _ in range(2):
        controller.tick()
    assert [verdict(controller, pid).partition("\n")[0] for pid in pids[:2]] == ["out of memory", "too large"]


@pytest.mark.parametrize(("wanted", "reason"), [(400, "out of memory"), (1000, "too large")])
def test_a_refusal_names_a_sufficient_memory_limit(controller, pids, wanted, reason):
    """85 % of the advised limit hold the server, the other programs and the model, by the message's own numbers."""
    mib = 2**20
    measured = DeviceMemory(700 * mib, 1000 * mib, "SIE_MEMORY_LIMIT_BYTES", server=500 * mib, least_server=100 * mib)
    controller._meters["cpu"].measure = lambda *_: measured
    waits = stage(controller, "m", pids[0], state=LOADING, wanted_bytes=wanted * mib)
    waits.record["wanted_since_ns"] -= WAITED_NS
    controller.tick()
    told, _, text = verdict(controller, pids[0]).partition("\n")
    assert told == reason
    assert "less 0.49 GiB for the server itself" in text
    (limit,) = re.findall(r"raise SIE_MEMORY_LIMIT_BYTES to at least (\d+)", text)
    others = 700 if reason == "out of memory" else 500  # evictable models do not count
    needed = (others + wanted) * mib / 0.85
    assert needed <= int(limit) < needed + 1e6


def test_unused_tokenizers_are_evicted_before_a_load_is_refused(controller, control, pids):
    """Tokenizers go before the waiting load is refused; also those of models that failed for lack of memory."""
    cold, failed, fresh, waiting = pids
    used = {"state": RESIDENT, "last_used_ns": monotonic_ns()}
    stage(controller, "failed", failed, load_failure=1)
    stage(controller, "failed", os.getpid(), "preprocess", **used)
    stage(controller, "resident", fresh, state=RESIDENT)
    stage(controller, "resident", cold, "preprocess", **used)
    controller.measured = DeviceMemory(800, 1000, "test")
    round_of(controller)
    assert control.swapped == []
    waits = stage(controller, "m", waiting, state=LOADING, wanted_bytes=500)
    stage(controller, "m", waiting, "preprocess", **used)
    round_of(controller)
    assert control.swapped == [("failed-preprocess", False)]
    assert verdict(controller, waiting) is None
    waits.record["wanted_since_ns"] -= WAITED_NS
    round_of(controller)
    assert verdict(controller, waiting).startswith("out of memory\n")


def test_pressure_is_relieved_while_something_loads(controller, control, pids, worker_bytes):
    loader, resident, worker, *_ = pids
    worker_bytes[worker] = 400
    controller.measured = DeviceMemory(900, 1000, "test")
    stage(controller, "loading", loader, state=LOADING, granted_bytes=100)
    stage(controller, "resident", resident, state=RESIDENT, worker_pid=worker)
    controller.tick()
    wait_for(lambda: control.swapped == [("resident-inference", False)])


@pytest.mark.parametrize(("used", "evicted"), [(850 + 290, []), (850 + 310, ["other-inference"])])
def test_memory_freed_by_eviction_and_a_leaving_process_counts_once(
    controller, control, pids, worker_bytes, used, evicted
):
    """Eviction and the old process free the same 300 bytes, so no other model is evicted for them."""
    old, new, other, _ = pids
    worker_bytes.update({old: 100, new: 200, other: 200})
    stage(controller, "m", old, state=RESIDENT, generation=1, worker_pid=old, num_open=1)
    stage(controller, "m", new, state=RESIDENT, generation=2, worker_pid=new, last_used_ns=1)
    stage(controller, "other", other, state=RESIDENT, worker_pid=other)
    controller.tick()
    control.may_end.clear()
    controller.evict("m", "asked for")
    controller.measured = DeviceMemory(used, 1000, "test")
    controller.tick()
    wait_for(lambda: [name for name, _ in control.swapped] == ["m-inference", *evicted])
    control.may_end.set()


def test_a_loader_far_over_its_grant_is_ended_before_any_eviction(controller, control, pids, worker_bytes):
    loader, resident, greedy, worker = pids
    worker_bytes.update({greedy: 500, worker: 300})
    controller.measured = DeviceMemory(900, 1000, "test")
    stage(controller, "loading", loader, state=LOADING, granted_bytes=100, worker_pid=greedy)
    stage(controller, "resident", resident, state=RESIDENT, worker_pid=worker)
    controller.tick()
    assert verdict(controller, loader).startswith("out of memory\nweights: loading took 0.00 GiB and was ended")
    assert control.swapped == []


def test_a_loader_may_take_twice_what_it_was_granted(controller, control, pids, worker_bytes):
    """The estimate of a load is rough; a resident model goes instead."""
    loader, resident, loading, worker = pids
    worker_bytes.update({loading: 200, worker: 300})
    controller.measured = DeviceMemory(900, 1000, "test")
    stage(controller, "loading", loader, state=LOADING, granted_bytes=100, worker_pid=loading)
    stage(controller, "resident", resident, state=RESIDENT, worker_pid=worker)
    controller.tick()
    assert verdict(controller, loader) is None
    wait_for(lambda: control.swapped == [("resident-inference", False)])


def test_a_late_load_of_a_process_without_traffic_is_granted(controller, pids):
    old, new, *_ = pids
    stage(controller, "m", old, state=LOADING, wanted_bytes=100, generation=1)
    stage(controller, "m", new, generation=2)
    controller.tick()
    assert verdict(controller, old) == GRANTED


@pytest.mark.parametrize("fields", [{"wanted_bytes": 100}, {"granted_bytes": 100}])
def test_a_loading_model_can_be_evicted_once_its_traffic_has_moved(controller, control, pids, fields):
    controller.measured = DeviceMemory(700, 1000, "test")
    stage(controller, "m", pids[0], state=LOADING, **fields)
    control.may_end.clear()
    controller.models = {}
    controller.tick()
    answer_path(controller._directory, pids[0]).unlink(missing_ok=True)
    swap = controller.evict("m", "asked for")
    time.sleep(0.1)
    assert verdict(controller, pids[0]) is None
    control.may_end.set()
    swap.result()
    wait_for(lambda: verdict(controller, pids[0]) == EVICTED)


@pytest.mark.parametrize(
    ("answer", "expected", "state"),
    [(EVICTED, BusyError, COLD), (refusal("out of memory", "weights: took too much"), LoadError, FAILED)],
)
def test_the_controller_can_end_a_granted_load(tmp_path, answer, expected, state):
    """Its requests are answered; an evicted model has not failed."""
    status = StatusWriter(tmp_path, "m", "inference", 0)
    cold = Loading(status, 512)
    (request,) = requests = [tokens([1])]
    (direct,) = cold.execute(requests)
    wait_for(lambda: status.record["granted_bytes"])
    give(tmp_path, status.record, answer)
    assert isinstance(request.answer(direct), expected)
    wait_for(lambda: status.record["state"] == state)
    assert status.record["granted_bytes"] == 0
    assert (cold._failure is None) == (state == COLD)
    cold.close()


class Loading(ColdStage[str]):
    """A stage that loads until the controller ends the load."""

    name = "inference"

    def load(self):
        with granted_memory(self.status, 5, self.closing) as granted:
            while True:
                granted.check()
                time.sleep(0.02)

    def process(self, loaded, requests):
        raise AssertionError

    def origin(self, request):
        return Origin(request.arrived_ns)


def test_a_stopped_controller_counts_as_not_running(tmp_path):
    program = f"""
import time
from pathlib import Path
from sie_triton.controller.loop import lock
held = lock(Path({str(tmp_path)!r}))
print(1, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as controller:
        controller.stdout.readline()
        assert int((tmp_path / CONTROLLER_LOCK).read_text()) == controller.pid
        assert controller_runs(tmp_path)
        os.kill(controller.pid, signal.SIGSTOP)
        wait_for(lambda: is_stopped(controller.pid))
        assert not controller_runs(tmp_path)
        with granted_memory(StatusWriter(tmp_path, "m", "inference", 0), 5, threading.Event()):
            pass
        controller.kill()
