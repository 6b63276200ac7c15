"""Processes that live but no longer work are replaced."""

import asyncio
import os
import signal
import sys
import threading
import urllib.request
from contextlib import suppress
from dataclasses import replace

import psutil
import pytest

from benchmarks.ports import free_ports
from sie_triton.controller import api
from sie_triton.server.companions import controller, doors
from sie_triton.settings import read_settings
from sie_triton.system.processes.limits import ProcessLimits
from sie_triton.system.processes.log import Log
from sie_triton.system.processes.pids import is_alive
from sie_triton.system.processes.supervisor import Companion, Pulse, beat
from tests.support.controller import wait_for

BEATS = """
import threading, time
from sie_triton.system.processes.supervisor import beat
ended = threading.Event()
threading.Timer({}, ended.set).start()
while not ended.wait(0.01):
    beat()
time.sleep(600)
"""


# Processes may take any time to start.
QUICK = ProcessLimits(beat_s=0.1, max_silent_polls_at_start=1_000_000)
MAX_SILENT, MAX_SILENT_AT_START = ProcessLimits.max_silent_polls, ProcessLimits.max_silent_polls_at_start


def has_beaten(companion: Companion) -> bool:
    return companion._pulse is not None and companion._pulse._num_left <= MAX_SILENT


def test_a_child_is_lost_after_too_many_checks_without_a_beat(monkeypatch):
    watched = Pulse()
    monkeypatch.setenv(*watched.environment.copy().popitem())
    for _ in range(3):
        beat()
        beat()
        assert [watched.is_lost() for _ in range(MAX_SILENT)] == [False] * MAX_SILENT
    assert watched.is_lost()
    watched.close()


def test_a_child_has_more_time_for_its_first_beat():
    watched = Pulse()
    looks = [watched.is_lost() for _ in range(MAX_SILENT_AT_START)]
    assert looks == [False] * (MAX_SILENT_AT_START - 1) + [True]
    watched.close()


def test_a_full_pipe_does_not_block_a_beating_child(monkeypatch):
    watched = Pulse()
    monkeypatch.setenv(*watched.environment.copy().popitem())
    for _ in range(70_000):  # more than the pipe holds
        beat()
    assert not watched.is_lost()
    watched.close()


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_program_that_hangs_is_replaced(tmp_path, is_stopped):
    """The process is suspended by a signal, or waits forever in a loop."""
    said: list[str] = []
    descriptors = psutil.Process().num_fds()
    program = BEATS.format(600 if is_stopped else 0.2)
    command = {"command": ["-c", program], "program": [sys.executable]}
    options = {"say": said.append, "beats": True, "limits": replace(QUICK, max_silent_polls=10)}
    with Companion("it", log=Log(tmp_path / "log"), environment={}, **options, **command) as it:
        hanging = it.pid
        wait_for(lambda: has_beaten(it))
        if is_stopped:
            os.kill(hanging, signal.SIGSTOP)
        wait_for(lambda: len(said) >= 2)
        assert not is_alive(hanging)
        assert it.pid != hanging
    assert said[0].startswith("it ended by the launcher (no sign of life for 1 s), after")
    assert psutil.Process().num_fds() <= descriptors + 1  # the last child is still known


def test_a_controller_with_a_hanging_round_stops_beating(monkeypatch):
    """This holds even if its event loop answers."""
    num_beats, begun, may_end = 0, threading.Event(), threading.Event()

    def count() -> None:
        nonlocal num_beats
        num_beats += 1

    class Hangs:
        rounds = 0

        def is_due(self) -> bool:
            return True

        def tick(self) -> None:
            self.rounds += 1
            if self.rounds == 3:
                begun.set()
                may_end.wait()

        def close(self) -> None:
            may_end.set()

    async def run() -> None:
        async with api.rounds(Hangs(), 0):
            while not begun.is_set():
                await asyncio.sleep(0)
            for _ in range(1000):
                await asyncio.sleep(0)

    monkeypatch.setattr(api, "beat", count)
    asyncio.run(run())
    assert num_beats == 2


def answers(port: int) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
        return answer.status == 200
    return False


@pytest.mark.parametrize("name", ["the door", "the controller"])
def test_a_stopped_process_of_the_server_is_replaced(tmp_path, name):
    """Two doors share a port: one is suspended, the other killed."""
    grpc_port, port, controller_port = free_ports(3)
    ports = {"grpc_port": grpc_port, "door_port": port, "controller_port": controller_port}
    settings = read_settings(data_dir=tmp_path, device="cpu", door_workers=2, **ports)
    said: list[str] = []
    if name == "the door":
        with doors(settings, {}, said.append, limits=QUICK) as processes:
            wait_for(lambda: all(map(has_beaten, processes)))
            before = [each.pid for each in processes]
            os.kill(before[0], signal.SIGSTOP)
            os.kill(before[1], signal.SIGKILL)
            wait_for(lambda: len(said) >= 4)
            assert not {*before} & {each.pid for each in processes}
            wait_for(lambda: all(answers(port) for _ in range(8)))
    else:
        with controller(settings, "token", said.append, QUICK) as process:
            wait_for(lambda: has_beaten(process))
            stopped = process.pid
            os.kill(stopped, signal.SIGSTOP)
            wait_for(lambda: len(said) >= 2)
            assert process.pid != stopped
            wait_for(lambda: answers(controller_port))
    assert any("no sign of life" in line for line in said)
