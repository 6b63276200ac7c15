"""Memory in a round of the controller: loads that are admitted, models that are evicted, and models that stay."""

import logging
import mmap
import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from sie_triton.controller.choice import Resident, victims
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.loop import Controller
from sie_triton.controller.memory import DeviceMemory
from sie_triton.records.grants import GRANTED, answer_path
from sie_triton.records.status import LOADING, RECORD, RESIDENT, VERSION
from sie_triton.settings import read_settings
from sie_triton.system.processes.pids import ProcessId
from tests.support.controller import round_of

GIB = 2**30
SECOND = 10**9
LONG_AGO = 1  # monotonic ns


class Triton:
    """Triton as the controller sees it; records the stages that got a new process."""

    def __init__(self) -> None:
        self.swapped: list[str] = []

    def swap(self, name, **_):
        self.swapped.append(name)


class World:
    """A controller of models whose processes are `sleep`s; each worker takes 600 of 1000 GiB."""

    def __init__(self, directory, monkeypatch, limits=ControllerLimits(), **settings) -> None:
        given = {"data_dir": directory, "min_residency_s": 0, "device": "cpu", **settings}
        read = read_settings(**given)
        self.directory = read.status_dir
        self.directory.mkdir(parents=True, exist_ok=True)
        self.memory = DeviceMemory(0, 1000 * GIB, "test")
        self.worker_bytes = 600 * GIB
        self._triton = Triton()
        self._controller = Controller(read, self._triton, limits)
        self._processes: list[subprocess.Popen[bytes]] = []
        monkeypatch.setattr(self._controller._meter, "measure", lambda *_: self.memory)
        monkeypatch.setattr("sie_triton.controller.model_states.worker_bytes", lambda _: self.worker_bytes)

    def process(self, model, stage="inference", generation=0, **fields):
        """Make the record of a new process."""
        self._processes.append(subprocess.Popen(["sleep", "60"]))
        pid = self._processes[-1].pid
        record = np.memmap(self.directory / f"{model}-{stage}.{pid}.status", RECORD, "w+", shape=(1,))[0]
        record["triton_pid"] = os.getpid()
        record["pid"], record["started"] = ProcessId.of(pid)
        for field, value in {"generation": generation, "version": VERSION, **fields}.items():
            record[field] = value
        return record

    def resident(self, model, **fields):
        return self.process(model, **{"state": RESIDENT, "worker_pid": os.getpid(), "last_used_ns": LONG_AGO, **fields})

    def waiting(self, model, num_bytes, for_s=0):
        since = time.monotonic_ns() - for_s * SECOND
        return self.process(model, state=LOADING, wanted_bytes=num_bytes, wanted_since_ns=since)

    def answer_to(self, record):
        path = answer_path(self.directory, int(record["pid"]))
        return path.read_text() if path.exists() else None

    def tick(self, swapped=()):
        """Run one round and check which stages get a new process in it."""
        before = len(self._triton.swapped)
        round_of(self._controller)
        assert self._triton.swapped[before:] == list(swapped)

    def close(self):
        self._controller.close()
        for process in self._processes:
            process.kill()
            process.wait()


@pytest.fixture
def world(tmp_path, monkeypatch, caplog, request):
    """Parametrise it indirectly with limits and settings."""
    caplog.set_level(logging.INFO)
    made = World(tmp_path, monkeypatch, **getattr(request, "param", {}))
    yield made
    made.close()


# --- memory for a load


def test_the_load_that_waited_longest_is_first(world):
    young = world.waiting("a", 500 * GIB, for_s=1)
    old = world.waiting("b", 500 * GIB, for_s=2)
    world.tick()
    assert (world.answer_to(old), world.answer_to(young)) == (GRANTED, None)


def test_a_draining_process_counts_as_freed_memory(world):
    """A process that only finishes its requests holds 600: no model is evicted for the missing 250."""
    world.memory = DeviceMemory(700 * GIB, 1000 * GIB, "test")
    waiting = world.waiting("a", 400 * GIB)
    world.resident("b", generation=0, num_open=1)
    world.process("b", generation=1)
    world.resident("c")
    world.tick()
    assert world.answer_to(waiting) is None


# --- pressure


def test_memory_pressure_evicts_the_least_recently_used_model(world, caplog):
    world.resident("b")
    world.resident("c", last_used_ns=2)
    world.memory = DeviceMemory(850 * GIB, 1000 * GIB, "test")
    world.tick()
    world.memory = DeviceMemory(851 * GIB, 1000 * GIB, "test")
    world.tick(swapped=["b-inference"])
    assert "b-inference: evict: pressure" in caplog.messages


@pytest.mark.parametrize("world", [{"min_residency_s": 1000}], indirect=True)
def test_a_new_resident_is_evicted_only_under_critical_pressure(world):
    world.resident("b", resident_since_ns=time.monotonic_ns())
    world.memory = DeviceMemory(970 * GIB, 1000 * GIB, "test")
    world.tick()
    world.memory = DeviceMemory(971 * GIB, 1000 * GIB, "test")
    world.tick(swapped=["b-inference"])


def test_busy_models_are_evicted_by_last_use_regardless_of_size():
    busy = [Resident(name, size, used, 0, True) for name, size, used in (("a", 10, 1), ("b", 100, 2), ("c", 10, 3))]
    assert victims(busy, 50, now_ns=9, min_residency_ns=0) == ["a", "b"]


# --- unused resources


@pytest.mark.parametrize("world", [{"idle_evict_s": 1}], indirect=True)
@pytest.mark.parametrize("busy", ["num_open", "busy_since_ns"])
def test_an_idle_model_is_evicted_and_a_busy_one_is_not(world, busy, caplog):
    record = world.resident("b", **{busy: 1})
    world.tick()
    record[busy] = 0
    world.tick(swapped=["b-inference"])
    assert "b-inference: evict: idle" in caplog.messages


def test_an_idle_tokenizer_of_a_cold_model_is_evicted(world):
    world.process("a")
    tokenizer = world.process("a", "preprocess", state=RESIDENT, last_used_ns=time.monotonic_ns() + 60 * SECOND)
    world.resident("b")
    world.process("b", "preprocess", state=RESIDENT, last_used_ns=LONG_AGO)
    world.tick()
    tokenizer["last_used_ns"] = LONG_AGO
    world.tick(swapped=["a-preprocess"])


def test_shared_memory_is_scanned_often_only_after_a_death(world, monkeypatch):
    now, scans = [time.monotonic() + 1000], []
    monkeypatch.setattr("sie_triton.controller.healing.monotonic", lambda: now[0])
    monkeypatch.setattr("sie_triton.controller.healing.orphaned_regions", lambda _: scans.append(now[0]) or set())

    def num_scans(seconds: int) -> int:
        before = len(scans)
        for _ in range(seconds):
            now[0] += 1
            round_of(world._controller)
        return len(scans) - before

    world.process("a")
    assert 1 <= num_scans(500) <= 2
    world._processes[0].kill()
    world._processes[0].wait()
    assert num_scans(20) >= 4
    world.process("a", generation=1)
    assert num_scans(20) >= 4
    num_scans(20)
    assert 1 <= num_scans(500) <= 2


@pytest.mark.parametrize("world", [{"limits": ControllerLimits(scan_s=-1.0)}], indirect=True)
def test_shared_memory_orphaned_in_two_scans_is_removed(world):
    """Triton, the parent of the stages, is this process here."""
    region = Path(f"/dev/shm/sie_{os.getpid()}_0c_left")
    world.process("a")
    region.write_bytes(bytes(4096))
    try:
        with region.open("r+b") as file, mmap.mmap(file.fileno(), 0):
            world.tick()
            assert region.exists()
            world.tick()
            assert not region.exists()
    finally:
        region.unlink(missing_ok=True)
