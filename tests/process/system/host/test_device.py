"""Devices of models, and what is said of those that cannot be used; the machine's files and NVML are faked."""

import ctypes
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sie_triton.errors import ServerError, SettingsError
from sie_triton.server import preflight, serve
from sie_triton.settings import read_settings
from sie_triton.system.host import device
from sie_triton.system.host.device import (
    choose_devices,
    hide_other_gpus,
    instance_devices,
    unused_gpus,
    visible_gpus,
)
from sie_triton.system.host.gpu_memory import check_gpu_names


@pytest.mark.parametrize(
    ("num_gpus", "asked", "chosen"),
    [
        (0, "auto", "cpu"),
        (0, "cuda", "cuda:0"),
        (1, "auto", "cuda:0"),
        (1, "cuda", "cuda:0"),
        (3, "auto", "cuda:0,cuda:1,cuda:2"),
        (3, "cuda", "cuda:0,cuda:1,cuda:2"),
        (4, "cpu", "cpu"),
        (4, "cuda:2", "cuda:2"),
        (4, "cuda:3, cuda:1", "cuda:3,cuda:1"),
        (4, "GPU-0c1d,MIG-7b2d", "GPU-0c1d,MIG-7b2d"),
    ],
)
def test_settings_name_the_devices(machine, num_gpus, asked, chosen):
    machine(num_gpus)
    settings = read_settings(device=asked)
    assert (settings.runtime.device, ",".join(settings.devices)) == (chosen, chosen)


@pytest.mark.parametrize("asked", ["cuda:", "cuda:0,cpu", "cuda:0,GPU-1", "cuda:0,auto", "gpu", "", "cuda:1,cuda:1"])
def test_a_list_of_devices_names_gpus_in_one_way_and_once(asked):
    with pytest.raises(SettingsError, match="device"):
        read_settings(device=asked)


@pytest.mark.parametrize(
    ("instance", "asked", "chosen"),
    [
        ({"model_instance_kind": "CPU", "model_instance_device_id": "0"}, "auto", "cuda:0"),
        ({"model_instance_kind": "CPU", "model_instance_device_id": "0"}, "cpu", "cpu"),
        ({"model_instance_kind": "GPU", "model_instance_device_id": "3"}, "auto", "cuda:3"),
    ],
)
def test_a_stage_in_a_stock_tritonserver_chooses_its_device(machine, instance, asked, chosen):
    machine(1)
    assert instance_devices(asked, instance) == [chosen]


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("", []), ("-1", []), ("2,0", ["2", "0"]), ("1,7,0", ["1"]), ("GPU-3", ["GPU-3"]), ("NoDevFiles", [])],
)
def test_visible_devices_limit_the_chosen_gpu(machine, monkeypatch, visible, gpus):
    machine(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == gpus
    assert choose_devices("auto") == ([f"cuda:{number}" for number in range(len(gpus))] or ["cpu"])


@pytest.mark.parametrize(
    ("num_gpus", "visible", "device", "left", "renamed"),
    [
        (0, None, "cpu", None, "cpu"),
        (1, None, "cuda:0", None, "cuda:0"),  # as it always was
        (1, "GPU-0", "cuda:0", "GPU-0", "cuda:0"),
        (4, None, "cuda:2", "2", "cuda:0"),
        (4, "3,1", "cuda:1", "1", "cuda:0"),
        (1, "MIG-0a,MIG-1b", "cuda:1", "MIG-1b", "cuda:0"),
        (1, None, "MIG-1b", "MIG-1b", "cuda:0"),
    ],
)
def test_cuda_sees_only_the_gpu_of_its_worker(machine, monkeypatch, num_gpus, visible, device, left, renamed):
    machine(num_gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # restored in any case
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES") if visible is None else monkeypatch.setenv(
        "CUDA_VISIBLE_DEVICES", visible
    )
    assert hide_other_gpus(device) == renamed
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == left


def test_unused_gpus_are_reported(machine):
    machine(1)
    assert unused_gpus("cuda:0") == ""
    machine(4)
    assert unused_gpus("cpu") == ""
    assert unused_gpus("cuda:1").startswith("all models run on cuda:1, one of 4 GPUs; the others are idle")


@pytest.mark.parametrize(
    ("num_gpus", "asked", "torch", "has_nvml", "said"),
    [
        (
            0,
            "cuda",
            "2.13.0",
            True,
            "--device cuda: no NVIDIA GPU can be used here (/dev has no nvidia0 and no dxg); install",
        ),
        (0, "cuda:1", "2.13.0", True, "--device cuda:1: no NVIDIA GPU"),
        (
            2,
            "cuda:2",
            "2.13.0",
            True,
            "--device cuda:2: is not among the GPUs that can be used here, cuda:0 to cuda:1;",
        ),
        (
            2,
            "cuda:0,cuda:3",
            "2.13.0",
            True,
            "--device cuda:3: is not among the GPUs that can be used here, cuda:0 to cuda:1;",
        ),
        (0, "MIG-0a", "2.13.0", True, "--device MIG-0a: no NVIDIA GPU"),
        (1, "MIG-0a,MIG-1b", "2.13.0", True, ""),
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
    problems = list(preflight.check_device(asked, choose_devices(asked), num_gpus, torch, has_nvml=has_nvml))
    assert len(problems) == bool(said)
    assert "".join(problems).startswith(said)
    assert not said or "--device cpu" in problems[0] or "or cpu" in problems[0]


@pytest.mark.parametrize(
    ("visible", "asked", "said"),
    [
        ("GPU-1", "auto", ""),
        ("0", "auto", ""),
        ("0", "cuda:1", ""),  # which another check refuses
        ("0,1", "GPU-1", ""),
        ("GPU-", "auto", "CUDA_VISIBLE_DEVICES: GPU- matches the UUIDs of 2 GPUs; it must match one; use more of the"),
        ("GPU-7", "auto", "CUDA_VISIBLE_DEVICES: GPU-7 matches the UUIDs of 0 GPUs"),
        ("GPU-1,GPU-7", "cuda", "CUDA_VISIBLE_DEVICES: GPU-7 matches the UUIDs of 0 GPUs"),
        ("0,1", "GPU-1,GPU-8", "--device: GPU-8 matches the UUIDs of 0 GPUs"),
    ],
)
def test_ambiguous_or_unknown_gpu_uuids_are_refused_at_startup(machine, monkeypatch, tmp_path, visible, asked, said):
    machine(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert "".join(check_gpu_names(choose_devices(asked))).startswith(said)
    assert list(check_gpu_names(["cpu"])) == []
    if said:
        with pytest.raises(ServerError, match=r"GPU-\d? matches the UUIDs of [02] GPUs"):
            serve.check_machine(read_settings(device=asked, data_dir=tmp_path / "data"), 1)


KERNEL = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\nGCC version: 12.2.0\n"
)


@pytest.mark.parametrize(
    ("built_for", "driver_cuda", "said"),
    [
        ("13.0", 12020, "535.104.05 knows CUDA 12.2, and torch 2.13.0 is built for CUDA 13.0; install driver 580 or"),
        ("12.8", 11080, "535.104.05 knows CUDA 11.8, and torch 2.13.0 is built for CUDA 12.8; install driver 525 or"),
        ("14.1", 13000, "is built for CUDA 14.1; install a driver for CUDA 14 or newer"),
        ("12.8", 12000, ""),  # of one major version any
        ("12.6", 13000, ""),
        ("13.0", 0, ""),
        ("", 12000, ""),
    ],
)
def test_a_driver_older_than_torch_needs_is_named(machine, tmp_path, monkeypatch, built_for, driver_cuda, said):
    machine(1)
    monkeypatch.setattr(preflight, "DRIVER_FILE", tmp_path / "version")
    (tmp_path / "version").write_text(KERNEL)
    known = {"has_nvml": True, "built_for": built_for, "driver_cuda": driver_cuda}
    problems = list(preflight.check_device("auto", ["cuda:0"], 1, "2.13.0", **known))
    assert len(problems) == bool(said)
    assert said in "".join(problems)
    assert not said or problems[0].endswith("or use --device cpu")


def test_torchs_cuda_version_is_read_without_importing_torch(tmp_path, monkeypatch):
    assert preflight.cuda_of_torch() == (torch.version.cuda or "")
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError")
    (package / "version.py").write_text("debug = False\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n")
    origin = SimpleNamespace(origin=str(package / "__init__.py"))
    monkeypatch.setattr(preflight, "find_spec", {"torch": origin}.get)
    assert preflight.cuda_of_torch() == "13.0"
    monkeypatch.setattr(preflight, "find_spec", {}.get)
    assert preflight.cuda_of_torch() == ""


def test_the_drivers_cuda_version_is_read(tmp_path, monkeypatch):
    """Without a driver nothing is known; a library of a driver's kind is compiled here."""
    (tmp_path / "cuda.c").write_text("int cuDriverGetVersion(int *version) { *version = 12040; return 0; }")
    load = ctypes.CDLL
    monkeypatch.setattr(preflight.ctypes, "CDLL", lambda name: load(tmp_path / name))
    assert preflight.cuda_of_driver() == 0
    subprocess.run(["gcc", "-shared", "-o", tmp_path / "libcuda.so.1", tmp_path / "cuda.c"], check=True)
    assert preflight.cuda_of_driver() == 12040


def test_the_gpus_of_windows_count(tmp_path, monkeypatch):
    """WSL: scripts/env installs a PyTorch for them too, and the launcher takes it."""
    monkeypatch.setattr(device, "DEVICE_FILES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    (tmp_path / "dxg").touch()
    assert choose_devices("auto") == ["cuda:0"]
    assert list(preflight.check_device("auto", ["cuda:0"], len(visible_gpus()), "2.13.0", has_nvml=True)) == []


@pytest.mark.parametrize(
    ("files", "torch", "extras"),
    [
        ((), "torch==1+cpu", "server demo onnx"),
        (("nvidiactl",), "torch==1", "server demo"),
        (("dxg",), "torch==1", "server demo"),
    ],
)
def test_the_environment_gets_what_fits_the_gpu_that_is_there(tmp_path, files, torch, extras):
    """The functions of scripts/env, for which /dev is another directory and nothing is installed."""
    for name in files:
        (tmp_path / name).touch()
    script = (Path(__file__).parents[4] / "scripts" / "env").read_text().replace("/dev/", f"{tmp_path}/")
    choice = script[script.index("has_gpu() {") : script.index("torch=$(grep")]
    function = script[script.index("install_torch() {") : script.index("if ! has_all")]
    code = f'torch=torch==1\ninstall() {{ echo "$@"; }}\n{choice}{function}\ninstall_torch\necho "${{extras[*]}}"'
    done = subprocess.run(["bash", "-c", code, "env", "server", "demo"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [torch, extras]
