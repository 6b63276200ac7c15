"""Memory of a GPU by NVML, which knows it by other names than CUDA.

CUDA takes a whole GPU, or of one that is cut into several (MIG) one part, the first where none is named.
"""

from contextlib import suppress
from typing import Any


def gpu_memory(name: str) -> tuple[int, int]:
    """Used and total bytes of what CUDA_VISIBLE_DEVICES calls so: by an index, or by a UUID or the beginning of one.

    LookupError if there is none, or more than one.
    """
    import pynvml

    pynvml.nvmlInit()
    info = pynvml.nvmlDeviceGetMemoryInfo(_handle(pynvml, name))
    return int(info.used), int(info.total)


def _handle(nvml: Any, name: str) -> Any:
    gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    if name.startswith("MIG-"):
        return _named(nvml, [part for gpu in gpus for part in _parts(nvml, gpu)], name)
    gpu = gpus[int(name)] if name.isdecimal() else _named(nvml, gpus, name)
    return next(iter(_parts(nvml, gpu)), gpu)


def _named(nvml: Any, handles: list[Any], name: str) -> Any:
    found = [handle for handle in handles if nvml.nvmlDeviceGetUUID(handle).startswith(name)]
    if len(found) != 1:
        raise LookupError(f"CUDA_VISIBLE_DEVICES: {name} is the beginning of {len(found)} UUIDs of GPUs, not of one")
    return found[0]


def _parts(nvml: Any, gpu: Any) -> list[Any]:
    """Handles of its parts; empty if it is whole, or the driver knows no parts."""
    parts: list[Any] = []
    with suppress(nvml.NVMLError):
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            with suppress(nvml.NVMLError):  # no part is there
                parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
    return parts
