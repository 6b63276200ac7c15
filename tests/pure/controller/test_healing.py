"""Dead processes are replaced, with retries, also after a restart of the controller or tritonserver."""

import mmap
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tritonclient.utils import InferenceServerException

from sie_triton.controller import healing, swaps
from sie_triton.controller.api import describe
from sie_triton.controller.loop import Controller
from sie_triton.controller.memory import DeviceMemory
from sie_triton.controller.model_control import OutOfService
from sie_triton.controller.model_states import read_stages
from sie_triton.records.status import LOADING, RESIDENT, loras_path
from sie_triton.system.processes.pids import Process, ProcessId, is_stopped
from tests.support.controller import round_of, stage, wait_for


@pytest.fixture
def dead():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


@pytest.fixture
def clock(monkeypatch):
    """Clock of healing, in seconds."""
    now = [1000.0]
    for module in (healing, swaps):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    return now


def test_healing_is_retried_until_it_succeeds(controller, control, dead, child, clock):
    left = stage(controller, "a", dead)
    control.failure = InferenceServerException("no space left on device")
    attempts = []
    for _ in range(600):
        round_of(controller)
        attempts.append(len(control.swapped))
        clock[0] += 0.2
    assert set(control.swapped) == {("a-inference", False)}
    # retries after 0, 1, 3, 7, 15, 31, 61 and 91 s; 120 s pass
    assert attempts[-1] == 8
    assert attempts.index(2) == pytest.approx(5, abs=1)
    assert left._path.exists()
    stage(controller, "a", child.pid, generation=1)
    round_of(controller)
    assert not left._path.exists()
    assert len(control.swapped) == 8
    child.kill()
    child.wait()
    round_of(controller)
    assert len(control.swapped) == 9


def test_a_new_controller_knows_what_is_to_be_healed(controller, control, dead, clock):
    stage(controller, "a", dead)
    control.failure = InferenceServerException("no space left on device")
    round_of(controller)
    another = Controller(controller._settings, control)
    round_of(another)
    assert len(control.swapped) == 2
    another.close()


def test_a_model_whose_processes_are_dead_has_the_state_dead(controller, control, dead, child):
    control.may_end.clear()
    stage(controller, "a", dead, state=RESIDENT, worker_pid=dead)
    stage(controller, "b", child.pid, state=RESIDENT)
    stage(controller, "b", dead, "preprocess")
    controller.tick()
    for name, stages in (("a", ["inference"]), ("b", ["preprocess"])):
        described = describe(controller.models[name])
        assert (described["state"], described["dead_stages"]) == ("dead", stages)
    assert not controller.models["a"].is_resident
    assert controller.models["b"].is_resident
    control.may_end.set()


def test_a_model_out_of_service_is_forgotten_instead_of_healed(controller, control, dead, clock):
    left = stage(controller, "a", dead)
    control.failure = OutOfService("a-inference was taken out of service")
    round_of(controller)
    wait_for(lambda: not left._path.exists())
    controller.tick()
    assert controller.models == {}


def test_no_file_of_a_replaced_process_stays(controller, dead, child):
    left = stage(controller, "a", dead)
    files = [left._path, loras_path(left._path)]
    files[1].touch()
    stage(controller, "a", child.pid, generation=1)
    round_of(controller)
    assert not any(path.exists() for path in files)


@pytest.mark.parametrize("of", ["status_dir", "stub_dir"])
def test_a_stopped_fork_server_is_ended(controller, child, of):
    """The launcher then starts a replacement."""
    os.kill(child.pid, signal.SIGSTOP)
    wait_for(lambda: is_stopped(child.pid))
    controller._directory.mkdir(parents=True, exist_ok=True)
    directory = getattr(controller._settings, of)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "fork_server.pid").write_text("{} {} ready".format(*ProcessId.of(child.pid)))
    controller.tick()
    controller.tick()
    assert child.wait(5) == -signal.SIGKILL


def test_a_new_tritonserver_resets_swaps_and_backoff(controller, control, dead, child, clock):
    """Swaps and failures of the previous tritonserver are forgotten."""
    stage(controller, "a", dead)
    living = stage(controller, "b", child.pid, state=RESIDENT, triton_pid=os.getppid())
    control.failure = InferenceServerException("connection refused")
    for _ in range(3):
        clock[0] += 60
        round_of(controller)
    num_before = len(control.swapped)
    clock[0] += 1
    round_of(controller)
    assert len(control.swapped) == num_before
    control.may_end.clear()
    hanging = controller.evict("b", "asked for")
    living.record["triton_pid"] = os.getpid()
    controller.measured = DeviceMemory(0, 1000, "test")
    controller.tick()
    wait_for(lambda: control.swapped[num_before:] == [("b-inference", False), ("a-inference", False)])
    assert controller.evict("b", "asked for") is not hanging
    control.may_end.set()


def test_a_stage_may_outlive_its_tritonserver(controller, child, dead):
    stage(controller, "a", child.pid, triton_pid=dead)
    controller.tick()
    assert controller._triton == 0


@pytest.mark.parametrize("has_successor", [False, True])
def test_the_worker_of_a_dead_stage_is_ended(controller, control, dead, child, pids, clock, has_successor):
    """It may still load, and hold the memory and the lock of the model's weights."""
    stage(controller, "a", dead, state=LOADING, worker_pid=child.pid)
    if has_successor:
        stage(controller, "a", pids[0], generation=1)
    round_of(controller)
    assert child.wait(10) == -signal.SIGKILL


def test_no_process_with_the_reused_pid_of_a_worker_is_ended(controller, control, dead, pids, clock, monkeypatch):
    """Neither is there a worker of a stage that died without one."""
    left = stage(controller, "a", dead, worker_pid=pids[0])
    left.record["worker_started"] -= 1
    stage(controller, "b", dead)
    sent = []
    monkeypatch.setattr(Process, "send", lambda process, signum: sent.append(process.pid))
    round_of(controller)
    assert sent == []


@pytest.fixture
def ended(monkeypatch):
    """Pids of processes that got a signal, which does not reach them."""
    pids = []
    monkeypatch.setattr(ProcessId, "send", lambda process, signum: pids.append(process.pid))
    return pids


def test_a_leaving_revision_keeps_all_its_processes_while_a_request_is_in_one(controller, clock, pids, ended):
    """The request that is in inference still needs postprocess."""
    inference = stage(controller, "a", pids[0], num_open=1)
    before = stage(controller, "a", pids[1], "preprocess")
    stage(controller, "a", pids[2], "postprocess")
    for in_preprocess, in_inference in ((0, 1), (0, 1), (1, 0), (0, 0)):
        clock[0] += 60
        before.record["num_open"], inference.record["num_open"] = in_preprocess, in_inference
        controller.swaps.end_unneeded(read_stages(controller._directory), {"a"})
        assert ended == []
    clock[0] += 31
    controller.swaps.end_unneeded(read_stages(controller._directory), {"a"})
    assert sorted(ended) == sorted(pids[:3])


def test_an_old_process_and_its_worker_stay_for_requests_that_were_in_preprocess_at_its_swap(
    controller, clock, pids, ended
):
    """Later requests, which preprocess always has, hold the new process. The worker ends in the second round."""
    before = stage(controller, "a", pids[0], "preprocess")
    old = stage(controller, "a", pids[1], worker_pid=pids[3])
    stage(controller, "a", pids[2], generation=1, num_open=1)
    steps = ((1, 0), (1, 0), (0, 1), (1, 0), (0, 0), (1, 0))
    for in_preprocess, in_old in steps:
        assert ended == []
        before.record["num_open"], old.record["num_open"] = in_preprocess, in_old
        controller.swaps.end_unneeded(read_stages(controller._directory))
        clock[0] += 31 if (in_preprocess, in_old) != (0, 0) else 20
    assert ended == pids[3:]
    controller.swaps.end_unneeded(read_stages(controller._directory))
    assert ended == [pids[3], pids[1]]


def test_a_briefly_stopped_process_is_not_killed(controller, child):
    stage(controller, "a", child.pid)
    for _ in range(2):
        for number, is_so in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
            os.kill(child.pid, number)
            wait_for(lambda is_so=is_so: is_stopped(child.pid) == is_so)
            controller.tick()
    assert child.poll() is None


@pytest.mark.parametrize("controller", [{"scan_s": -1.0}], indirect=True)
def test_shared_memory_orphaned_in_two_scans_is_removed(controller, pids):
    """Triton, the parent of the stages, is this process here."""
    region = Path(f"/dev/shm/sie_{os.getpid()}_0c_left")
    stage(controller, "a", pids[0], triton_pid=os.getpid())
    region.write_bytes(bytes(4096))
    try:
        with region.open("r+b") as file, mmap.mmap(file.fileno(), 0):
            round_of(controller)
            assert region.exists()
            round_of(controller)
            assert not region.exists()
    finally:
        region.unlink(missing_ok=True)
