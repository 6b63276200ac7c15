"""One device for all models, chosen once and measured as the same one; the machine's files and NVML are faked."""

import sys
from types import SimpleNamespace

import pytest

from sie_triton import device
from sie_triton.controller.loop import Controller
from sie_triton.controller.memory import Memory, Meter
from sie_triton.device import choose_device, instance_device, unused_gpus, visible_gpus
from sie_triton.errors import ServerError
from sie_triton.server import preflight, serve
from sie_triton.settings import read_settings

GIB = 2**30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Gives it so many GPUs, of which NVML says that `index` GiB are used of 80."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(device, "DEVICE_FILES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def set_up(num_gpus: int) -> None:
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(num_gpus))):
            (tmp_path / name).touch()
        nvml = SimpleNamespace(
            __spec__=object(),
            nvmlInit=lambda: None,
            nvmlDeviceGetHandleByIndex=list(range(num_gpus)).__getitem__,
            nvmlDeviceGetHandleByUUID=lambda uuid: int(uuid.removeprefix("GPU-")),
            nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(used=index * GIB, total=80 * GIB),
        )
        monkeypatch.setitem(sys.modules, "pynvml", nvml)

    return set_up


@pytest.mark.parametrize(
    ("num_gpus", "asked", "chosen"),
    [
        (0, "auto", "cpu"),
        (1, "auto", "cuda:0"),
        (4, "auto", "cuda:0"),
        (4, "cpu", "cpu"),
        (4, "cuda", "cuda:0"),
        (4, "cuda:2", "cuda:2"),
    ],
)
def test_settings_name_one_device(machine, num_gpus, asked, chosen):
    machine(num_gpus)
    assert read_settings(device=asked).runtime.device == chosen


@pytest.mark.parametrize(
    ("instance", "asked", "chosen"),
    [
        ({"model_instance_kind": "CPU", "model_instance_device_id": "0"}, "auto", "cuda:0"),
        ({"model_instance_kind": "CPU", "model_instance_device_id": "0"}, "cpu", "cpu"),
        ({"model_instance_kind": "GPU", "model_instance_device_id": "3"}, "auto", "cuda:3"),
    ],
)
def test_a_stage_of_a_stock_tritonserver_finds_it_out(machine, instance, asked, chosen):
    machine(4)
    assert instance_device(asked, instance) == chosen


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("", []), ("-1", []), ("2,0", ["2", "0"]), ("1,7,0", ["1"]), ("GPU-3", ["GPU-3"]), ("NoDevFiles", [])],
)
def test_what_cuda_is_shown(machine, monkeypatch, visible, gpus):
    machine(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == gpus
    assert choose_device("auto") == ("cuda:0" if gpus else "cpu")


@pytest.mark.parametrize(
    ("visible", "asked", "name"),
    [
        (None, "auto", "0"),
        (None, "cuda:3", "3"),
        ("2,3", "cuda", "2"),
        ("2,3", "cuda:1", "3"),
        ("GPU-1", "auto", "GPU-1"),
    ],
)
def test_the_controller_measures_the_device_that_models_run_on(machine, monkeypatch, tmp_path, visible, asked, name):
    machine(4)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    (tmp_path / "status").mkdir()
    controller = Controller(read_settings(device=asked, data_dir=tmp_path), None)
    controller.tick()
    controller.close()
    assert controller.memory == Memory(int(name[-1]) * GIB, 80 * GIB, f"GPU {name}")
    assert Meter("cuda:0", 5 * GIB).measure(0).limit == 5 * GIB


def test_gpus_that_are_not_used_are_told_of(machine):
    machine(1)
    assert unused_gpus("cuda:0") == ""
    machine(4)
    assert unused_gpus("cpu") == ""
    assert unused_gpus("cuda:1").startswith("all models run on cuda:1; the other GPUs of 4 are not used")


@pytest.mark.parametrize(
    ("num_gpus", "asked", "torch", "has_nvml", "said"),
    [
        (0, "cuda", "2.13.0", True, "--device cuda: no NVIDIA GPU can be used here (/dev has no nvidia0); install"),
        (0, "cuda:1", "2.13.0", True, "--device cuda:1: no NVIDIA GPU"),
        (
            2,
            "cuda:2",
            "2.13.0",
            True,
            "--device cuda:2: is not among the GPUs that can be used here, cuda:0 to cuda:1;",
        ),
        (
            1,
            "auto",
            "2.13.0+cpu",
            True,
            "--device auto: torch 2.13.0+cpu is a build for CPUs; pip install torch==2.13.0 ",
        ),
        (1, "auto", "2.13.0", False, "--device auto: the GPU's memory cannot be measured; pip install"),
        (1, "auto", "2.13.0", True, ""),
        (0, "auto", "2.13.0+cpu", False, ""),
        (1, "cpu", "2.13.0+cpu", False, ""),
    ],
)
def test_a_device_that_cannot_be_used_is_one_line_with_a_remedy(machine, num_gpus, asked, torch, has_nvml, said):
    machine(num_gpus)
    problems = list(preflight.check_device(asked, choose_device(asked), num_gpus, torch, has_nvml=has_nvml))
    assert len(problems) == bool(said)
    assert "".join(problems).startswith(said)
    assert not said or "--device cpu" in problems[0] or "or cpu" in problems[0]


def test_serve_refuses_it_before_anything_starts(machine, tmp_path):
    machine(0)
    with pytest.raises(ServerError, match=r"^--device cuda: no NVIDIA GPU .* or use --device cpu$"):
        serve.check_machine(read_settings(device="cuda", data_dir=tmp_path / "data"), 1)
