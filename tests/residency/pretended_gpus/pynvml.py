"""NVML of two GPUs of 80 GB, of which another program takes 1 GB."""

from types import SimpleNamespace


class NVMLError(Exception):
    pass


def nvmlInit():
    pass


def nvmlDeviceGetCount():
    return 2


def nvmlDeviceGetHandleByIndex(index):
    return index


def nvmlDeviceGetMaxMigDeviceCount(gpu):
    raise NVMLError


def nvmlDeviceGetMemoryInfo(gpu):
    return SimpleNamespace(used=1_000_000_000, total=80_000_000_000)
