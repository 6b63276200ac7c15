"""A machine of GPUs: its files and NVML are faked."""

import sys
from types import SimpleNamespace

import pytest

from sie_triton.system.host import device

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
        monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(num_gpus))

    return set_up


def fake_nvml(num_gpus, parts=(), lost=()):
    """NVML of GPUs with UUIDs GPU-00…, GPU-11…; `parts` are the places of the last GPU, each empty or a MIG device of
    that many GiB.

    Those use 1 GiB. The GPUs with the numbers in `lost` have fallen off the bus.
    """

    def gpu(index):
        if index in lost:
            raise NotFound("GPU is lost")
        return range(num_gpus)[index]

    def part(gpu, place):
        if parts[place] is None:
            raise NotFound
        return f"MIG-{place}{place}beef", parts[place]

    def memory_of(handle):
        used, total = (1, handle[1]) if isinstance(handle, tuple) else (handle, 80)
        return SimpleNamespace(used=used * GIB, total=total * GIB)

    def num_places(gpu):
        if not parts:
            raise NotFound  # as drivers say that do not know of it
        return len(parts) if gpu == num_gpus - 1 else 0

    return SimpleNamespace(
        __spec__=object(),
        NVMLError=NotFound,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: num_gpus,
        nvmlDeviceGetHandleByIndex=gpu,
        nvmlDeviceGetUUID=lambda handle: handle[0] if isinstance(handle, tuple) else f"GPU-{handle}{handle}cafe",
        nvmlDeviceGetMaxMigDeviceCount=num_places,
        nvmlDeviceGetMigDeviceHandleByIndex=part,
        nvmlDeviceGetMemoryInfo=memory_of,
    )


class NotFound(Exception):
    """Stand-in for NVML's error."""
