"""A tritonserver that runs and answers nothing is ended; gRPC is real, the process is one that sleeps."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.model_control import ModelControl, TritonWatchdog
from sie_triton.system.processes.pids import ProcessId
from tests.support.controller import wait_for
from tests.support.doubles import FakeTriton

LIMITS = ControllerLimits(watch_s=3600.0, watch_timeout_s=30.0)


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    with FakeTriton("grpc") as fake:
        yield fake


@pytest.fixture
def watching(fake: FakeTriton, child: subprocess.Popen[bytes]) -> Iterator[TritonWatchdog]:
    """A watch of `child`, whose thread does not look."""
    control = ModelControl(fake.url.removeprefix("grpc://"))
    watching = TritonWatchdog(control, LIMITS)
    watching.triton = ProcessId.of(child.pid)
    yield watching
    watching.close()
    control.close()


@pytest.fixture
def silent(watching: TritonWatchdog, fake: FakeTriton) -> Callable[[int], None]:
    """Return a function that looks so many times while Triton is silent."""

    def silent(number: int) -> None:
        watching._limits = replace(LIMITS, watch_timeout_s=0.05)
        fake.is_silent = True
        for _ in range(number):
            watching.look()
        fake.is_silent = False
        watching._limits = LIMITS

    return silent


def test_a_tritonserver_that_answers_no_more_is_ended(watching, silent, child):
    watching.look()
    silent(LIMITS.max_silent_looks - 1)
    watching.look()
    silent(LIMITS.max_silent_looks - 1)
    assert child.poll() is None  # it has answered in between
    silent(1)
    assert child.wait(10) == -signal.SIGKILL


def test_one_that_has_never_answered_still_starts(silent, child):
    silent(LIMITS.max_silent_looks + 1)
    assert child.poll() is None


def test_one_that_follows_another_has_not_answered_yet(watching, silent, child):
    watching.triton = ProcessId.of(1)
    watching.look()
    watching.triton = ProcessId.of(child.pid)
    silent(LIMITS.max_silent_looks + 1)
    assert child.poll() is None


def test_one_that_is_stopped_may_go_on(watching, silent, child):
    watching.look()
    child.send_signal(signal.SIGSTOP)
    wait_for(lambda: watching.triton.is_stopped)
    silent(LIMITS.max_silent_looks + 1)
    child.send_signal(signal.SIGCONT)
    assert child.poll() is None


def test_the_thread_looks(watching, fake, child):
    with_thread = TritonWatchdog(watching._control, replace(LIMITS, watch_s=0.01))
    with_thread.triton = ProcessId.of(child.pid)
    wait_for(lambda: with_thread._has_answered)
    with_thread._limits = replace(LIMITS, watch_s=0.01, watch_timeout_s=0.05)
    fake.is_silent = True
    assert child.wait(60) == -signal.SIGKILL
    with_thread.close()
