"""The controller's evictions, measurements and rounds, without a Triton."""

import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.controller import memory
from sie_triton.controller.choice import Resident, victims
from sie_triton.controller.loop import lock
from sie_triton.controller.memory import DeviceMemory, Meter, Shares, orphaned_regions
from sie_triton.errors import LoadError, ServerError
from sie_triton.records.grants import answer_load, controller_runs, granted_memory, refusal
from sie_triton.records.status import StatusWriter
from sie_triton.system.host.footprint import FORK_SERVER_BYTES
from sie_triton.system.host.process_memory import Share, private_bytes
from tests.support.controller import stage
from tests.support.limits import cgroups

RESIDENTS = st.lists(
    st.builds(
        Resident,
        st.integers(0, 99).map(str),
        st.integers(1, 100),
        st.integers(0, 50),
        st.integers(0, 50),
        st.booleans(),
    ),
    unique_by=lambda r: r.name,
    max_size=10,
)


@given(RESIDENTS, st.integers(-10, 300), st.integers(0, 30), st.booleans())
def test_victims(residents, to_free, min_residency, critical):
    by_name = {r.name: r for r in residents}
    names = victims(residents, to_free, now_ns=50, min_residency_ns=min_residency, critical=critical)
    chosen = [by_name[name] for name in names]
    eligible = [r for r in residents if critical or 50 - r.resident_since_ns >= min_residency]
    freed = sum(r.num_bytes for r in chosen)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(eligible)
    # enough, or all there is; and not one more than needed
    assert freed >= to_free or set(chosen) == set(eligible)
    assert not chosen or freed - chosen[-1].num_bytes < to_free
    # never one in use while another is idle
    if any(r.is_busy for r in chosen):
        assert {r for r in eligible if not r.is_busy} <= set(chosen)
    # the first is of the less recently used half, and the least recently used where that is enough
    idle = sorted((r for r in eligible if not r.is_busy), key=lambda r: (r.last_used_ns, r.name))
    if chosen and not chosen[0].is_busy:
        assert chosen[0] in idle[: (len(idle) + 1) // 2]
        if idle[0].num_bytes >= to_free and not critical:
            assert chosen == [idle[0]]


def test_memory_of_a_process_and_of_a_container(tmp_path, monkeypatch):
    assert 1_000_000 < private_bytes(os.getpid()) < 10**11
    assert private_bytes(2**22 + 1) == 0
    cgroups(monkeypatch, tmp_path)
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("4000\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 300\n")
    assert Meter("cpu", 0).measure(0) == DeviceMemory(700, 4000, "container")
    (tmp_path / "memory.max").write_text("max\n")
    assert Meter("cpu", 0).measure(0).source == "machine"
    assert Meter("cpu", 10**9).measure(os.getpid()).used >= private_bytes(os.getpid())
    assert DeviceMemory(90, 100, "").over(85) == 5


def test_a_model_is_swapped_once_at_a_time(controller, control):
    control.may_end.clear()
    first = controller.evict("a", "asked for")
    assert controller.evict("a", "pressure") is first
    control.may_end.set()
    first.result()
    assert control.swapped == [("a-inference", False)]
    assert controller.evict("a", "pressure") is not first


def test_with_a_controller_it_waits_for_its_answer(tmp_path):
    status = StatusWriter(tmp_path, "m", "inference", 0)
    with lock(tmp_path):
        assert controller_runs(tmp_path)
        with pytest.raises(ServerError, match="another controller"):
            lock(tmp_path)
        threading.Timer(0.3, answer_load, [tmp_path, status.record, refusal("too large", "never")]).start()
        with pytest.raises(LoadError, match="never"), granted_memory(status, 5, threading.Event()):
            raise AssertionError
    assert not controller_runs(tmp_path)
    assert status.record["wanted_bytes"] == 0
    assert not list(Path(tmp_path).glob("*.grant"))


def test_a_models_memory_is_that_of_its_gpu_where_it_has_one(controller, child):
    stage(controller, "a", worker_pid=child.pid, device_bytes=5_000)
    controller.tick()
    assert controller.models["a"].num_bytes == 5_000
    child.kill()
    child.wait()
    controller.tick()
    assert controller.models["a"].num_bytes == 0


def test_among_models_of_about_one_size_last_use_decides():
    a, b, c, d = (
        Resident(name, size, used, 0) for name, size, used in zip("abcd", (95, 100, 99, 30), range(4), strict=True)
    )
    assert victims([d, c, b, a], 120, now_ns=9, min_residency_ns=0) == ["a", "b"]


def test_shared_memory_of_a_process_that_is_gone_is_found():
    region = Path(f"/dev/shm/sie_{os.getpid()}_0a_mapped")
    left = Path(f"/dev/shm/sie_{os.getpid()}_0a_left")
    anothers = Path(f"/dev/shm/sie_{os.getpid()}_0b_left")
    for path in (left, anothers):
        path.touch()
    region.write_bytes(bytes(4096))
    clients_own = Path(f"/dev/shm/mine_{os.getpid()}")
    clients_own.write_bytes(bytes(4096))
    mapping = (
        "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); print(1, flush=True); input()"
    )
    try:
        with region.open("r+b") as ours, clients_own.open("r+b") as theirs:  # noqa: SIM117
            with mmap.mmap(ours.fileno(), 0), mmap.mmap(theirs.fileno(), 0):
                assert orphaned_regions(os.getpid()) == {region, left}
                command = [sys.executable, "-c", mapping, str(region)]
                with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stub:
                    stub.stdout.readline()
                    assert orphaned_regions(os.getpid()) == {left}
                    stub.kill()
                assert orphaned_regions(os.getpid()) == {region, left}
    finally:
        for path in (region, left, anothers, clients_own):
            path.unlink()


def test_the_servers_own_share_is_reserved_from_the_start(monkeypatch):
    """A fork server that still imports counts with the memory that it will take, so that no model is granted it."""
    monkeypatch.setattr(memory, "processes", lambda pid: [])
    monkeypatch.setattr(memory, "share_of", lambda pid: Share(100, 100))
    meter = Meter("cpu", 10**9, clock=lambda: 7.0)
    reserved = meter.measure(1, fork_servers={5}, importing={5})
    assert (reserved.used, reserved.server) == (FORK_SERVER_BYTES, FORK_SERVER_BYTES)
    assert meter.measure(1, fork_servers={5}).server == 100


def test_memory_is_measured_anew_when_weights_have_come(monkeypatch):
    """Otherwise another load would be granted the memory that they have just taken."""
    own = [10]
    monkeypatch.setattr(memory, "share_of", lambda pid: Share(own[0], own[0]))
    monkeypatch.setattr(memory, "processes", lambda pid: [])
    meter = Meter("cpu", 1000, clock=lambda: 7.0)
    assert meter.measure(0, {5: 0}).used == 10
    own[0] = 500
    assert meter.measure(0, {5: 0}).used == 10  # by a clock that stands still
    assert meter.measure(0, {5: 3}).used == 500


def test_a_process_is_measured_sometimes_and_its_growth_is_added_meanwhile(monkeypatch):
    """A measurement takes the system milliseconds, more for a large process; a look at the number of pages does not."""
    now, pages, measured = [0.0], [100], []
    monkeypatch.setattr(memory, "monotonic", lambda: now[0])
    monkeypatch.setattr(memory, "private_bytes", lambda pid: pages[0])
    monkeypatch.setattr(memory, "share_of", lambda pid: measured.append(now[0]) or Share(70, 40))
    shares, found = Shares(10.0), []
    for now[0], pages[0] in ((0.0, 100), (1.0, 500), (9.9, 20), (10.1, 500)):
        found.append(shares(5))
    assert found == [Share(70, 40), Share(470, 440), Share(0, 0), Share(70, 40)]
    assert measured == [0.0, 10.1]
    shares.keep({6})
    shares(5)
    assert len(measured) == 3
