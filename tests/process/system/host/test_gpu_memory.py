"""Memory of GPUs, measured on those that CUDA uses; the machine's files and NVML are faked."""

import sys
from dataclasses import replace

import pytest

from sie_triton.controller.loop import Controller
from sie_triton.controller.memory import DeviceMemory, Meter
from sie_triton.records.status import ENGINES
from sie_triton.settings import read_settings
from sie_triton.system.host.gpu_memory import GpuLost, check_gpu_names, gpu_memory
from tests.process.system.host.conftest import GIB, fake_nvml
from tests.support.controller import stage


@pytest.mark.parametrize(
    ("name", "parts", "expected"),
    [
        ("0", (), (0, 80)),
        ("1", (), (1, 80)),
        ("GPU-1", (), (1, 80)),
        ("GPU-11cafe", (), (1, 80)),
        ("0", (None, 10, 20), (0, 80)),
        ("1", (None, 10, 20), (1, 10)),
        ("GPU-11", (None, 10, 20), (1, 10)),
        ("MIG-2", (None, 10, 20), (1, 20)),
        ("1", (None, None), (1, 80)),
    ],
)
def test_nvml_measures_what_cuda_takes(monkeypatch, name, parts, expected):
    """The first part of a GPU that is cut; UUIDs may be abbreviated."""
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(2, parts))
    assert gpu_memory(name) == (expected[0] * GIB, expected[1] * GIB)


@pytest.mark.parametrize("name", ["1", "GPU-1"])
def test_a_lost_gpu_does_not_hide_another(monkeypatch, name):
    lost = {0}
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(2, lost=lost))
    assert gpu_memory(name) == (1 * GIB, 80 * GIB)
    with pytest.raises(GpuLost, match="GPU 0: GPU is lost"):
        gpu_memory("0")
    with pytest.raises(LookupError):
        gpu_memory("GPU-0")


@pytest.mark.parametrize("named", [("cuda:0", "cuda:1"), ("GPU-00", "GPU-11")])
def test_a_lost_gpu_keeps_its_last_measurement_until_it_is_back(machine, monkeypatch, tmp_path, named):
    """A round goes on for the others."""
    machine(2)
    lost = set()
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(2, lost=lost))
    (tmp_path / "status").mkdir()
    controller = Controller(read_settings(device=",".join(named), data_dir=tmp_path), None)
    controller.tick()
    before = [*controller.memories.values()]
    lost.add(1)
    for _ in range(2):
        controller.tick()
        first, second = controller.memories.values()
        assert first == before[0]
        assert second == replace(before[1], source=f"{before[1].source}, lost", is_lost=True)
    lost.clear()
    controller.tick()
    assert [*controller.memories.values()] == before
    assert not before[1].is_lost
    controller.close()


def test_a_gpu_that_is_lost_at_the_start_is_no_problem_of_its_name(machine, monkeypatch):
    machine(2)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(2, lost={1}))
    assert list(check_gpu_names(["cuda:0", "cuda:1"])) == []


def test_only_our_workers_count_towards_a_memory_limit(machine, tmp_path, child):
    """Another program has 3 GiB of the GPU; no model is evicted for these."""
    machine(4)
    (tmp_path / "status").mkdir()
    settings = read_settings(device="cuda:3", data_dir=tmp_path, memory_limit_bytes=2 * GIB)
    controller = Controller(settings, None)
    stage(controller, "a", worker_pid=child.pid, device_bytes=GIB)
    stage(controller, "b", worker_pid=child.pid)  # it loads: its room is reserved
    stage(controller, "far", worker_pid=child.pid, device_bytes=GIB, engine=ENGINES.index("remote"))
    controller.tick()
    assert controller.memories == {"cuda:3": DeviceMemory(GIB, 2 * GIB, "SIE_MEMORY_LIMIT_BYTES")}
    child.kill()
    child.wait()
    controller.tick()
    assert controller.memories["cuda:3"].used == 0
    controller.close()
    assert Meter("cuda:3", 500 * GIB).measure(0) == DeviceMemory(3 * GIB, 80 * GIB, "GPU 3")


@pytest.mark.parametrize(
    ("visible", "asked", "names"),
    [
        (None, "cuda:3", {"cuda:3": "3"}),
        ("2,3", "cuda:1", {"cuda:1": "3"}),
        ("GPU-1", "auto", {"cuda:0": "GPU-1"}),
        ("3,1", "auto", {"cuda:0": "3", "cuda:1": "1"}),
        (None, "GPU-2,GPU-0", {"GPU-2": "GPU-2", "GPU-0": "GPU-0"}),
    ],
)
def test_the_controller_measures_the_devices_that_models_run_on(machine, monkeypatch, tmp_path, visible, asked, names):
    machine(4)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (tmp_path / "status").mkdir()
    controller = Controller(read_settings(device=asked, data_dir=tmp_path), None)
    controller.tick()
    controller.close()
    assert controller.memories == {
        device: DeviceMemory(int(name[-1]) * GIB, 80 * GIB, f"GPU {name}") for device, name in names.items()
    }
    assert Meter("cuda:0", 5 * GIB).measure(0).limit == 5 * GIB
