"""The worker as a real process, and the stage that outlives it."""

import fcntl
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.errors import LoadError, ModelError
from sie_triton.pipeline.stages.inference import Inference
from sie_triton.pipeline.worker.handle import WorkerDied, WorkerHandle
from sie_triton.pipeline.worker.messages import Load, PassResult
from sie_triton.records.status import LOADING, RECORD, RESIDENT, VERSION, StatusWriter
from sie_triton.system.host.process_memory import share_of
from sie_triton.system.processes.channel import LARGE_BYTES, Channel
from sie_triton.system.processes.pids import ProcessId, is_alive, parent_of
from tests.support.controller import wait_for
from tests.support.loading import load_adapter, token_batch
from tests.support.stages import run, tokens

SPEC = ModelSpec(
    "m", "", "sentence_transformer", {"dense": 64}, 512, 16384, runtime=Runtime(device="cpu", max_sub_batch_cost=2048)
)
LIMITS = {"forward_timeout_s": 60, "load_timeout_s": 60}
SMALL = token_batch(np.arange(1000, 1012, dtype=np.int32), np.array([5, 7], np.int32), np.zeros(2, np.int32))
LARGE = token_batch(np.full(512 * 60, 1000, np.int32), np.full(60, 512, np.int32), np.zeros(60, np.int32))


def order(directory: Path, status_directory: Path | None = None) -> Load:
    lock = (status_directory or directory.parent) / "weights.lock"
    return Load(SPEC.to_json(), directory, "cpu", directory / "measured", lock, num_lanes=2, threads=1)


@pytest.fixture
def worker(tiny_directory, fork_server_directory, deaths):
    """A forked worker."""
    worker = WorkerHandle(order(tiny_directory, fork_server_directory), deaths.append, **LIMITS)
    assert parent_of(worker.pid) != os.getpid()
    yield worker
    worker.close()
    assert not is_alive(worker.pid)


def test_worker_results_match_the_adapters(worker, tiny_directory):
    assert_worker_works(worker, tiny_directory)


def test_a_worker_without_a_fork_server_does_the_same_and_takes_more(worker, tiny_directory, tmp_path, deaths):
    """Until the imports are done, it computes more."""
    started = WorkerHandle(order(tiny_directory, tmp_path), deaths.append, **LIMITS)
    assert parent_of(started.pid) == os.getpid()
    taken = {}
    for name, each in (("forked", worker), ("started", started)):
        used = psutil.Process(each.pid).cpu_times()
        taken[name] = used.user + used.system, share_of(each.pid).total
    print({name: f"{seconds:.2f} s, {num_bytes / 1e6:.0f} MB" for name, (seconds, num_bytes) in taken.items()})
    assert taken["forked"][0] < taken["started"][0]
    assert taken["forked"][1] < taken["started"][1]
    assert_worker_works(started, tiny_directory)
    assert_lanes_at_rest_keep_no_threads(started)
    assert deaths == []
    assert_end_is_noticed(started, deaths, signal.SIGKILL)
    started.close()


def test_a_lane_at_rest_keeps_no_threads(worker):
    assert_lanes_at_rest_keep_no_threads(worker)


def assert_worker_works(worker: WorkerHandle, directory: Path) -> None:
    expected = load_adapter(SPEC, directory).forward(SMALL)
    np.testing.assert_allclose(worker.forward(SMALL, 1)["dense"], expected["dense"], rtol=1e-4, atol=1e-5)
    assert worker.loaded.limits == {"input_ids": 30521}
    assert worker.loaded.sub_batch_cost == 0


def test_passes_of_any_size_leave_little_memory_behind(worker):
    """Each size is compiled anew; kept for ever, 300 of them would be 400 MB."""
    need = share_of(worker.pid).own
    assert worker.loaded.need_bytes == pytest.approx(need, rel=0.2)
    for size in np.random.default_rng(0).permutation(np.arange(20, 320)):
        worker.forward(token_batch(np.full(size, 1000, np.int32), np.array([size], np.int32)), 1)
    wait_for(lambda: share_of(worker.pid).own <= need + 100e6)


def assert_lanes_at_rest_keep_no_threads(worker: WorkerHandle) -> None:
    """All lanes' threads would outnumber the processors, and then no thread busy-waits."""
    worker.forward(SMALL, 1)
    without = psutil.Process(worker.pid).num_threads()

    def has_a_team():
        worker.forward(LARGE, 2)
        return psutil.Process(worker.pid).num_threads() == without + 1

    wait_for(has_a_team)
    wait_for(lambda: psutil.Process(worker.pid).num_threads() == without)


def test_loading_leaves_no_threads(minilm_directory, fork_server_directory, tmp_path, deaths):
    """Loading compares forward passes, with as many threads as there are processors."""
    spec = replace(SPEC, dims={"dense": 384}).to_json()
    load = replace(order(minilm_directory, fork_server_directory), spec=spec, measurements_dir=tmp_path)
    worker = WorkerHandle(load, deaths.append, **LIMITS)
    after_load = psutil.Process(worker.pid).num_threads()
    for _ in range(2):  # the loading thread releases its team after it has answered each order
        worker.remove_lora("none")
    assert psutil.Process(worker.pid).num_threads() == after_load
    worker.close()


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_stopped_worker_is_noticed(worker, deaths):
    assert_end_is_noticed(worker, deaths, signal.SIGSTOP)


def assert_end_is_noticed(worker: WorkerHandle, deaths: list[WorkerHandle], sent: signal.Signals) -> None:
    os.kill(worker.pid, sent)
    wait_for(lambda: not is_running(worker.pid))  # a small pass may end before the signal arrives
    with pytest.raises(WorkerDied):  # and not that it took longer than LIMITS
        worker.forward(SMALL, 1)
    wait_for(lambda: deaths == [worker])
    assert not worker.is_alive


def test_a_pass_over_the_time_limit_is_ended(tiny_directory, fork_server_directory, deaths):
    worker = WorkerHandle(
        order(tiny_directory, fork_server_directory), deaths.append, forward_timeout_s=0.05, load_timeout_s=60
    )
    with pytest.raises(ModelError, match=r"took longer than 0\.05 s"):
        worker.forward(LARGE, 1)
    wait_for(lambda: deaths == [worker])
    worker.close()


def test_the_result_of_a_pass_over_the_time_limit_is_discarded(
    tiny_directory, fork_server_directory, deaths, monkeypatch
):
    """It is discarded even if the worker is faster than the signal that ends it."""
    worker = WorkerHandle(
        order(tiny_directory, fork_server_directory), deaths.append, forward_timeout_s=0.05, load_timeout_s=60
    )
    with monkeypatch.context() as patch:
        patch.setattr(worker._process, "kill", lambda: None)
        with pytest.raises(ModelError, match="took longer"):
            worker.forward(LARGE, 1)
        time.sleep(1)
        with pytest.raises(WorkerDied):
            worker.forward(SMALL, 1)
    worker.close()


def test_a_result_that_cannot_be_stored_is_out_of_memory(worker):
    """The worker goes on."""
    many = token_batch(np.full(512, 1000, np.int32), np.ones(512, np.int32), np.zeros(512, np.int32))
    assert worker.forward(many, 1)["dense"].nbytes > LARGE_BYTES
    more = token_batch(np.full(2048, 1000, np.int32), np.ones(2048, np.int32), np.zeros(2048, np.int32))
    limits = resource.prlimit(worker.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, (4096, limits[1]))
    with pytest.raises(MemoryError):
        worker.forward(more, 1)
    assert worker.forward(many, 1)["dense"].shape == (512, 64)
    resource.prlimit(worker.pid, resource.RLIMIT_FSIZE, limits)
    assert worker.forward(more, 1)["dense"].shape == (2048, 64)


def test_a_failed_pass_leaves_the_worker_alive(worker):
    beyond = token_batch(np.array([10**6], np.int32), np.array([1], np.int32), np.zeros(1, np.int32))
    with pytest.raises(ModelError, match=r"inference failed with IndexError; workers\.log has the details"):
        worker.forward(beyond, 1)
    assert worker.forward(SMALL, 1)["dense"].shape == (2, 64)


def test_weights_that_cannot_be_loaded_leave_no_process(tmp_path, fork_server_directory, deaths):
    before = {*psutil.Process().children(recursive=True)}
    with pytest.raises(LoadError, match=r"modules.json|config.json"):
        WorkerHandle(order(tmp_path, fork_server_directory), deaths.append, **LIMITS)
    assert {*psutil.Process().children(recursive=True)} <= before  # one of an earlier test may end meanwhile
    assert deaths == []


def test_a_worker_ends_with_its_stage(tiny_directory, fork_server_directory):
    program = f"""
import time
from contextlib import suppress
from pathlib import Path
from sie_triton.pipeline.worker.handle import WorkerHandle
from tests.process.pipeline.worker.test_worker import order
load = order(Path({str(tiny_directory)!r}), Path({str(fork_server_directory)!r}))
print(WorkerHandle(load, print, forward_timeout_s=60, load_timeout_s=60).pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as stage:
        pid = int(stage.stdout.readline())
        assert psutil.pid_exists(pid)
        stage.kill()
    wait_for(lambda: not psutil.pid_exists(pid))


@pytest.fixture
def stage(tmp_path, tiny_directory, fork_server_directory):
    """A stage with forked workers."""
    runtime = Runtime(device="cpu", cache_dir=str(tmp_path / "cache"), max_sub_batch_cost=512)
    spec = ModelSpec("m", str(tiny_directory), "sentence_transformer", {"dense": 64}, 512, 16384, runtime=runtime)
    stage = Inference(spec, "cpu", StatusWriter(fork_server_directory, tmp_path.name, "inference", 0))
    stage.warm_up()
    yield stage
    stage.close()
    stage.status.remove()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_no_request_is_lost_when_the_worker_dies(stage, sent):
    before = stage._loaded.pid
    (expected,) = run(stage, [tokens([1000] * 20)])
    requests = [tokens(*[[1000] * 20 for _ in range(10)]) for _ in range(20)]
    requests.append(tokens(*[[1000] * 20 for _ in range(400)]))
    direct = stage.execute(requests)
    os.kill(before, sent)
    for request, answer in zip(requests, direct, strict=True):
        assert request.answer(answer)["dense"][0] == pytest.approx(expected["dense"][0], abs=1e-5)
    assert stage._loaded.pid != before
    assert stage.status.record["worker_pid"] == stage._loaded.pid
    assert stage.status.record["num_replaced"] == 1
    assert stage.status.record["state"] == RESIDENT


def test_a_pass_over_the_time_limit_fails_its_request_and_the_next_has_another_worker(stage, monkeypatch):
    before = stage._loaded.pid
    monkeypatch.setattr(stage._loaded, "_timeout_s", 0.0)
    ended, answered = (run(stage, [tokens([1000])])[0] for _ in range(2))
    assert isinstance(ended, ModelError)
    assert answered["dense"].shape == (1, 64)
    assert stage._loaded.pid != before
    assert stage._loaded._timeout_s == Runtime().forward_timeout_s


def test_a_loader_that_is_stopped_is_replaced_and_no_request_lost(stage, monkeypatch):
    stopped = []
    look = WorkerHandle._watch_loading

    def stop_the_first(worker, *args):
        if not stopped:
            stopped.append(worker.pid)
            os.kill(worker.pid, signal.SIGSTOP)
        look(worker, *args)

    monkeypatch.setattr(WorkerHandle, "_watch_loading", stop_the_first)
    os.kill(stage._loaded.pid, signal.SIGKILL)
    (answer,) = run(stage, [tokens([1000] * 20)])
    assert answer["dense"].shape == (1, 64)
    assert stage._loaded.pid != stopped[0]
    assert not is_alive(stopped[0])


def test_the_record_names_a_worker_from_its_birth(stage, monkeypatch):
    seen, record = [], stage.status.record
    look = WorkerHandle._watch_loading

    def watched(worker, *args):
        look(worker, *args)
        seen.append((int(record["worker_pid"]) == worker.pid, int(record["state"])))

    monkeypatch.setattr(WorkerHandle, "_watch_loading", watched)
    os.kill(stage._loaded.pid, signal.SIGKILL)
    wait_for(lambda: seen == [(True, LOADING)])


def test_a_dead_idle_worker_is_replaced_without_a_request(stage):
    before = stage._loaded.pid
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: stage.status.record["num_replaced"] == 1 and stage.status.record["state"] == RESIDENT)
    (answer,) = run(stage, [tokens([1000])])
    assert answer["dense"].shape == (1, 64)


def test_a_worker_ended_after_the_traffic_has_moved_is_not_replaced(stage):
    """Late requests are answered, although the new process may already hold the lock."""
    with subprocess.Popen(["sleep", "60"]) as successor:
        directory, model = stage.status.directory, stage.status.model
        record = np.memmap(directory / f"{model}-inference.{successor.pid}.status", RECORD, "w+", shape=(1,))[0]
        record["pid"], record["started"] = ProcessId.of(successor.pid)
        record["generation"], record["version"] = 1, VERSION
        before = stage._loaded.pid
        os.kill(before, signal.SIGTERM)
        wait_for(lambda: stage._loaded is None)
        assert stage.status.record["worker_pid"] == 0
        with (directory / f"{model}.cpu.weights").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (answer,) = run(stage, [tokens([1000])])
        assert answer["dense"].shape == (1, 64)
        assert stage.status.record["num_replaced"] == 0
        successor.kill()


def test_gpu_memory_that_has_grown_goes_into_the_status_record(stage, monkeypatch):
    receive = Channel.recv

    def grown(channel):
        message = receive(channel)
        return replace(message, device_bytes=7_000_000) if isinstance(message, PassResult) else message

    monkeypatch.setattr(Channel, "recv", grown)
    assert run(stage, [tokens([14] * 10)])[0]["dense"].shape == (1, 64)
    assert stage.status.record["device_bytes"] == 7_000_000
