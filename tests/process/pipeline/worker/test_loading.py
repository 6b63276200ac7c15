"""Loads that never end, and a fork server that does not answer."""

import json
import os
import shutil
import signal
import socket

import psutil
import pytest

from sie_triton.errors import BusyError, LoadError
from sie_triton.pipeline.worker.handle import LoaderStopped, WorkerHandle, begin
from sie_triton.system.processes.fork_server import _short, fork_server_ids
from sie_triton.system.processes.pids import parent_of
from tests.process.pipeline.worker.test_worker import LIMITS, order
from tests.support.controller import wait_for


def test_a_load_that_takes_too_long_is_ended(tiny_directory, tmp_path, fork_server_directory, deaths):
    """config.json has the largest number of layers that is allowed."""
    endless = shutil.copytree(tiny_directory, tmp_path / "endless")
    config = json.loads((endless / "config.json").read_text())
    (endless / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 1000}))
    pids = []
    with pytest.raises(LoadError, match="loading took longer than 1 s and was ended; SIE_LOAD_TIMEOUT_S") as caught:
        WorkerHandle(
            order(endless, fork_server_directory),
            deaths.append,
            forward_timeout_s=60,
            load_timeout_s=1,
            loading=pids.append,
        )
    assert not caught.value.is_permanent
    assert not pids[0].is_alive
    assert deaths == []


def test_a_worker_that_is_stopped_while_it_loads_is_ended(tiny_directory, fork_server_directory, deaths):
    with pytest.raises(LoaderStopped):
        WorkerHandle(order(tiny_directory, fork_server_directory), deaths.append, **LIMITS, loading=stop)


def test_a_load_that_is_not_wanted_any_more_is_ended(tiny_directory, fork_server_directory, deaths):
    pids = []

    def evicted(process):
        pids.append(process)
        raise BusyError("evicted")

    with pytest.raises(BusyError):
        WorkerHandle(order(tiny_directory, fork_server_directory), deaths.append, **LIMITS, loading=evicted)
    assert not pids[0].is_alive


def stop(process):
    process.send(signal.SIGSTOP)


def test_a_stopped_fork_server_is_not_waited_for(tmp_path, fork_server_directory, monkeypatch):
    """The stage starts the worker itself; the fork server's late child is orphaned and ends."""
    monkeypatch.setattr("sie_triton.system.processes.fork_server.FORK_TIMEOUT_S", 0.5)
    fork_server = psutil.Process(fork_server_ids(fork_server_directory)[0].pid)
    fork_server.suspend()
    child, connections = begin(fork_server_directory, 2)
    fork_server.resume()
    try:
        assert parent_of(child.pid) == os.getpid()
        assert len(connections) == 2
    finally:
        child.end()
    monkeypatch.undo()
    forked, _ = begin(fork_server_directory, 2)
    assert parent_of(forked.pid) == fork_server.pid
    forked.kill()
    wait_for(lambda: fork_server.children() == [])


def test_a_silent_connection_does_not_block_the_fork_server(fork_server_directory):
    with _short(fork_server_directory) as path, socket.socket(socket.AF_UNIX) as silent:
        silent.connect(path)
        child, _ = begin(fork_server_directory, 1)
        assert parent_of(child.pid) != os.getpid()
        child.kill()
