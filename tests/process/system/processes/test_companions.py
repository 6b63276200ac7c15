"""Companions of tritonserver: restarted when they die, tried again while they cannot be started, closed meanwhile."""

import errno
import os
import signal
import threading

import psutil
import pytest

from sie_triton.system.processes import supervisor
from sie_triton.system.processes.child import start
from sie_triton.system.processes.limits import ProcessLimits
from sie_triton.system.processes.log import Log
from sie_triton.system.processes.supervisor import Companion
from tests.support.controller import wait_for

SERVER = ["http.server", "--bind=127.0.0.1", "0"]


@pytest.mark.usefixtures("nothing_is_left")
def test_a_companion_is_restarted_and_reports_that(tmp_path):
    said: list[str] = []
    with Companion(
        "the clock", ["http.server", "--bind=127.0.0.1", "0"], Log(tmp_path / "log"), {}, said.append
    ) as companion:
        for _ in range(2):
            before = companion.pid
            os.kill(before, signal.SIGKILL)
            wait_for(lambda before=before: companion.pid != before)
            assert not psutil.pid_exists(before)
        wait_for(lambda: len(said) == 4)
    assert said[0] == "the clock ended by SIGKILL, as the system does when memory is short, after 0 s; restarting"
    assert said[1].startswith("the clock was restarted in")


@pytest.mark.usefixtures("nothing_is_left")
def test_a_companion_that_cannot_be_started_is_tried_until_it_can(tmp_path, monkeypatch):
    """The log has a line of the first, second, fourth, eighth and sixteenth failure."""
    said: list[str] = []
    failures = [OSError(errno.ENFILE, "no file handle")] * 20

    def fail_first(*args, **options):
        if failures:
            raise failures.pop()
        return start(*args, **options)

    limits = ProcessLimits(pauses_s=(0.0,))
    with Companion("the clock", SERVER, Log(tmp_path / "log"), {}, said.append, limits=limits) as companion:
        before = companion.pid
        monkeypatch.setattr(supervisor, "start", fail_first)
        os.kill(before, signal.SIGKILL)
        wait_for(lambda: said and said[-1].startswith("the clock was restarted in"))
        assert companion.pid != before
    numbers = [line.split()[1] for line in said if line.endswith("of the clock failed: [Errno 23] no file handle")]
    assert numbers == ["1", "2", "4", "8", "16"]


@pytest.mark.usefixtures("nothing_is_left")
def test_a_companion_that_cannot_be_started_again_can_be_closed(tmp_path, monkeypatch):
    tried = threading.Event()

    def fail(*args, **options):
        tried.set()
        raise OSError(errno.ENFILE, "no file handle")

    with Companion("the clock", SERVER, Log(tmp_path / "log"), {}) as companion:
        monkeypatch.setattr(supervisor, "start", fail)
        os.kill(companion.pid, signal.SIGKILL)
        assert tried.wait(60)


@pytest.mark.usefixtures("nothing_is_left")
def test_a_companion_that_ends_while_it_is_closed_is_not_started_again(tmp_path):
    for _ in range(5):
        with Companion("the clock", SERVER, Log(tmp_path / "log"), {}) as companion:
            os.kill(companion.pid, signal.SIGKILL)
