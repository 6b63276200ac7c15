"""Loads that do not end, and a nursery that does not answer."""

import json
import os
import shutil
import signal
import socket
import time
from contextlib import suppress

import psutil
import pytest

from sie_triton.errors import BusyError, LoadError
from sie_triton.records.status import parent_of
from sie_triton.worker.child import Child
from sie_triton.worker.nursery import _short, nursery_pid
from sie_triton.worker.process import LoaderStopped, Worker
from tests.controller import wait_for
from tests.unit.test_worker import LIMITS, order


def test_a_load_that_takes_too_long_is_ended(tiny_directory, tmp_path, nursery_directory, deaths):
    """A config.json that asks for as many layers as may be."""
    endless = shutil.copytree(tiny_directory, tmp_path / "endless")
    config = json.loads((endless / "config.json").read_text())
    (endless / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1000}))
    pids = []
    with pytest.raises(LoadError, match="loading took longer than 1 s and was ended; SIE_LOAD_TIMEOUT_S") as caught:
        Worker(
            order(endless, nursery_directory),
            deaths.append,
            forward_timeout_s=60,
            load_timeout_s=1,
            loading=pids.append,
        )
    assert not caught.value.is_permanent
    assert not psutil.pid_exists(pids[0])
    assert deaths == []


def test_a_worker_that_is_stopped_while_it_loads_is_ended(tiny_directory, nursery_directory, deaths):
    started = time.monotonic()
    with pytest.raises(LoaderStopped):
        Worker(order(tiny_directory, nursery_directory), deaths.append, **LIMITS, loading=stop)
    assert time.monotonic() - started < 5


def test_a_load_that_is_not_wanted_any_more_is_ended(tiny_directory, nursery_directory, deaths):
    pids = []

    def evicted(pid):
        pids.append(pid)
        raise BusyError("evicted")

    with pytest.raises(BusyError):
        Worker(order(tiny_directory, nursery_directory), deaths.append, **LIMITS, loading=evicted)
    assert not psutil.pid_exists(pids[0])


def stop(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)


def test_a_stopped_nursery_is_not_waited_for(tmp_path, nursery_directory, monkeypatch):
    """The worker is started by itself, and what the nursery forks when it comes round has nobody to serve."""
    monkeypatch.setattr("sie_triton.worker.nursery.FORK_TIMEOUT_S", 0.5)
    nursery = psutil.Process(*nursery_pid(nursery_directory))
    nursery.suspend()
    child = Child(nursery_directory, 2)
    nursery.resume()
    try:
        assert parent_of(child.pid) == os.getpid()
        assert len(child.connections) == 2
    finally:
        child.kill()
        child.wait()
    monkeypatch.undo()
    forked = Child(nursery_directory, 2)
    assert parent_of(forked.pid) == nursery.pid
    forked.kill()
    wait_for(lambda: nursery.children() == [])


def test_a_stage_that_says_nothing_does_not_hold_up_the_nursery(nursery_directory):
    with _short(nursery_directory) as path, socket.socket(socket.AF_UNIX) as silent:
        silent.connect(path)
        child = Child(nursery_directory, 1)
        assert parent_of(child.pid) != os.getpid()
        child.kill()
