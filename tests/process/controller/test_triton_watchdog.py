"""A tritonserver that runs and answers nothing is ended; gRPC is real, the process is one that sleeps."""

import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest

from sie_triton.controller import triton_watchdog
from sie_triton.controller.model_control import ModelControl
from sie_triton.controller.triton_watchdog import MAX_SILENT, TritonWatchdog
from sie_triton.system.processes.pids import ProcessId
from tests.support.controller import wait_for
from tests.support.doubles import FakeTriton


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    with FakeTriton("grpc") as fake:
        yield fake


@pytest.fixture
def watching(fake: FakeTriton, child: subprocess.Popen[bytes], monkeypatch) -> Iterator[TritonWatchdog]:
    """A watch of `child`, whose thread does not look."""
    monkeypatch.setattr(triton_watchdog, "LOOK_S", 3600.0)
    monkeypatch.setattr(triton_watchdog, "TIMEOUT_S", 30.0)
    control = ModelControl(fake.url.removeprefix("grpc://"))
    watching = TritonWatchdog(control)
    watching.triton = ProcessId.of(child.pid)
    yield watching
    watching.close()
    control.close()


@pytest.fixture
def silent(watching: TritonWatchdog, fake: FakeTriton, monkeypatch) -> Callable[[int], None]:
    """Return a function that looks so many times while Triton is silent."""

    def silent(number: int) -> None:
        monkeypatch.setattr(triton_watchdog, "TIMEOUT_S", 0.05)
        fake.is_silent = True
        for _ in range(number):
            watching.look()
        fake.is_silent = False
        monkeypatch.setattr(triton_watchdog, "TIMEOUT_S", 30.0)

    return silent


def test_a_tritonserver_that_answers_no_more_is_ended(watching, silent, child):
    watching.look()
    silent(MAX_SILENT - 1)
    watching.look()
    silent(MAX_SILENT - 1)
    assert child.poll() is None  # it has answered in between
    silent(1)
    assert child.wait(10) == -signal.SIGKILL


def test_one_that_has_never_answered_still_starts(silent, child):
    silent(MAX_SILENT + 1)
    assert child.poll() is None


def test_one_that_follows_another_has_not_answered_yet(watching, silent, child):
    watching.triton = ProcessId.of(1)
    watching.look()
    watching.triton = ProcessId.of(child.pid)
    silent(MAX_SILENT + 1)
    assert child.poll() is None


def test_one_that_is_stopped_may_go_on(watching, silent, child):
    watching.look()
    child.send_signal(signal.SIGSTOP)
    wait_for(lambda: watching.triton.is_stopped)
    silent(MAX_SILENT + 1)
    child.send_signal(signal.SIGCONT)
    assert child.poll() is None


def test_the_thread_looks(watching, fake, child, monkeypatch):
    monkeypatch.setattr(triton_watchdog, "LOOK_S", 0.01)
    with_thread = TritonWatchdog(watching._control)
    with_thread.triton = ProcessId.of(child.pid)
    wait_for(lambda: with_thread._has_answered)
    monkeypatch.setattr(triton_watchdog, "TIMEOUT_S", 0.05)
    fake.is_silent = True
    assert child.wait(60) == -signal.SIGKILL
    with_thread.close()
