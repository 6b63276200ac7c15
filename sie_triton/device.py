"""Which device models run on: one of this machine, chosen once. Standard library only, and CUDA is not loaded."""

import os
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

DEVICE_FILES = Path("/dev")


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
    return len(files) or int((DEVICE_FILES / "dxg").exists())


def unused_gpus(device: str) -> str:
    """What to say of GPUs beside `device`; empty where there is none."""
    gpus = visible_gpus()
    if len(gpus) < 2 or device == "cpu":
        return ""
    return f"all models run on {device}; the other GPUs of {len(gpus)} are not used (--device cuda:N chooses another)"


def _is_gpu(name: str, present: int) -> bool:
    return int(name) < present if name.isdecimal() else name.startswith(("GPU-", "MIG-"))
