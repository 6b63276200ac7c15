"""Which device models run on: one of this machine, chosen once. Standard library only, and CUDA is not loaded."""

import os
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

DEVICE_FILES = Path("/dev")

# transformers asks whether there is a GPU while it is imported, if flash-attn is installed. PyTorch then asks NVML in
# CUDA's place: after a call of CUDA no forked process could use it.
ASK_NVML = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}

# Settings of PyTorch's allocator; before 2.9 it knows the second name only. What the user has set stays.
ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")

# Sub-batches of ever other sizes would break a GPU's memory into pieces: it is mapped so that blocks can grow instead.
EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


def choose_device(asked: str) -> str:
    """`asked` is auto, cpu, cuda or cuda:N; what comes back is cpu or cuda:N, whether or not it is there."""
    if asked == "auto":
        return "cuda:0" if visible_gpus() else "cpu"
    return "cuda:0" if asked == "cuda" else asked


def instance_device(asked: str, instance: Mapping[str, str]) -> str:
    """The same inside Triton; a GPU in the model's instance group goes before what was asked for."""
    if instance["model_instance_kind"] == "GPU":
        return f"cuda:{instance['model_instance_device_id']}"
    return choose_device(asked)


def visible_gpus() -> list[str]:
    """What NVML calls each GPU that CUDA may use, in CUDA's order: an index or a UUID."""
    present = num_gpus()
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not present or listed is None:
        return [str(index) for index in range(present)]
    # CUDA, too, ends at the first that is none.
    return list(takewhile(lambda name: _is_gpu(name, present), map(str.strip, listed.split(","))))


def num_gpus() -> int:
    """By the driver's device files. WSL has one file for all GPUs: at least one."""
    files = [path for path in DEVICE_FILES.glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal()]
    return len(files) or int(is_wsl())


def is_wsl() -> bool:
    """True if the GPUs are those of Windows, which has no device files for them."""
    return (DEVICE_FILES / "dxg").exists()


def worker_variables(device: str) -> dict[str, str]:
    """Environment of workers on `device`, and of the processes that fork them, beside that of this process."""
    is_set = any(name in os.environ for name in ALLOCATOR_SETTINGS)
    # Some of WSL's drivers cannot map memory in this way: https://github.com/pytorch/pytorch/issues/192330
    return ASK_NVML | ({} if device == "cpu" or is_set or is_wsl() else EXPANDABLE)


def unused_gpus(device: str) -> str:
    """What to say of GPUs beside `device`; empty where there is none."""
    gpus = visible_gpus()
    if len(gpus) < 2 or device == "cpu":
        return ""
    return f"all models run on {device}; the other GPUs of {len(gpus)} are not used (--device cuda:N chooses another)"


def _is_gpu(name: str, present: int) -> bool:
    return int(name) < present if name.isdecimal() else name.startswith(("GPU-", "MIG-"))
