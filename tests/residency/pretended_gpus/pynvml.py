"""NVML of GPUs of 80 GB, of which another program takes 1 GB. Those named in the file PRETENDED_LOST are lost."""

import os
from pathlib import Path
from types import SimpleNamespace


class NVMLError(Exception):
    pass


def nvmlInit():
    pass


def nvmlDeviceGetCount():
    return int(os.environ.get("PRETENDED_GPUS", "2"))


def nvmlDeviceGetHandleByIndex(index):
    lost = Path(os.environ.get("PRETENDED_LOST", "/nowhere"))
    if lost.exists() and str(index) in lost.read_text().split():
        raise NVMLError("GPU is lost")
    return index


def nvmlDeviceGetMaxMigDeviceCount(gpu):
    raise NVMLError


def nvmlDeviceGetMemoryInfo(gpu):
    return SimpleNamespace(used=1_000_000_000, total=80_000_000_000)
