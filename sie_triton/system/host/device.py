"""The devices that models run on, chosen once. Uses only the standard library, and does not load CUDA."""

import os
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

DEVICE_FILES = Path("/dev")

# If flash-attn is installed, transformers checks for a GPU while it is imported. With this variable PyTorch asks NVML
# instead of CUDA: after a call of CUDA no forked process could use CUDA.
ASK_NVML = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}

# Sub-batches of ever new sizes would fragment a GPU's memory; expandable segments let blocks grow instead.
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def choose_devices(setting: str) -> list[str]:
    """Return cpu, or the names of GPUs, whether or not these exist: cuda:N, a UUID, or the start of one.

    `setting` is auto, cpu, cuda, or such names with commas between them; auto and cuda are all GPUs.
    """
    if setting not in ("auto", "cuda"):
        return setting.split(",")
    gpus = [f"cuda:{number}" for number in range(len(visible_gpus()))]
    return gpus or ["cpu" if setting == "auto" else "cuda:0"]


def instance_devices(setting: str, instance: Mapping[str, str]) -> list[str]:
    """Choose the devices inside Triton: a GPU in the model's instance group overrides `setting`."""
    if instance["model_instance_kind"] == "GPU":
        return [f"cuda:{instance['model_instance_device_id']}"]
    return choose_devices(setting)


def gpu_name(device: str) -> str:
    """Return NVML's name of a GPU: CUDA numbers only those in CUDA_VISIBLE_DEVICES, NVML all."""
    number = device.removeprefix("cuda:")
    return visible_gpus()[int(number)] if number.isdecimal() else device


def hide_other_gpus(device: str) -> str:
    """Hide all GPUs but `device` from CUDA, which this process has not used yet; return the device's name from then on.

    CUDA uses one part of a partitioned GPU (MIG) in a process, and code that names no GPU takes memory of the first.
    """
    if device == "cpu" or (device.startswith("cuda:") and len(visible_gpus()) < 2):
        return device
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu_name(device)
    return "cuda:0"


def visible_gpus() -> list[str]:
    """Return NVML's name of each GPU that CUDA may use, an index or a UUID, in CUDA's order."""
    present = num_gpus()
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not present or listed is None:
        return [str(index) for index in range(present)]
    # Like CUDA, stop at the first name that is no GPU.
    return list(takewhile(lambda name: _is_gpu(name, present), map(str.strip, listed.split(","))))


def num_gpus() -> int:
    """Count the GPUs by the driver's device files. WSL has one file for all GPUs, which counts as one."""
    files = [path for path in DEVICE_FILES.glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal()]
    return len(files) or int(is_wsl())


def is_wsl() -> bool:
    """True if the GPUs are those of Windows, which has no device files for them."""
    return (DEVICE_FILES / "dxg").exists()


def worker_variables(device: str) -> dict[str, str]:
    """Return extra environment variables for workers on `device`, and for their fork servers."""
    # What the user has set is kept; PyTorch before 2.9 knows only the second name.
    is_set = any(name in os.environ for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"))
    # Some of WSL's drivers do not support it: https://github.com/pytorch/pytorch/issues/192330
    return ASK_NVML | ({} if device == "cpu" or is_set or is_wsl() else EXPANDABLE)


def unused_gpus(device: str) -> str:
    """Return a warning about GPUs that are not used; empty if there are none, or `device` is cpu."""
    gpus = visible_gpus()
    if len(gpus) < 2 or device == "cpu":
        return ""
    return f"all models run on {device}, one of {len(gpus)} GPUs; the others are idle (--device cuda:N chooses another)"


def _is_gpu(name: str, present: int) -> bool:
    return int(name) < present if name.isdecimal() else name.startswith(("GPU-", "MIG-"))
