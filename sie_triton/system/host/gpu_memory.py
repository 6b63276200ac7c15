"""Memory of a GPU as measured by NVML, whose names for GPUs differ from CUDA's.

CUDA uses a whole GPU, or one part of a partitioned GPU (MIG): the first part, if none is named.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from sie_triton.system.host.device import gpu_name, visible_gpus


class GpuLost(Exception):
    """Raised if NVML cannot measure a GPU, for example because it has fallen off the bus."""


def gpu_memory(name: str) -> tuple[int, int]:
    """Return the used and total bytes of a GPU; `name` is as in CUDA_VISIBLE_DEVICES: an index, or the start of a UUID.

    Raise LookupError if no GPU has that name, or several do, and GpuLost. Another GPU that is lost does not matter.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
        info = pynvml.nvmlDeviceGetMemoryInfo(_handle(pynvml, name))
    except pynvml.NVMLError as exc:
        raise GpuLost(f"GPU {name}: {exc}") from exc
    return int(info.used), int(info.total)


def gpu_type(name: str) -> str:
    """Return the type of a GPU, such as a100-80gb; empty if NVML does not name it. `name` is as for `gpu_memory`."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return type_of(str(pynvml.nvmlDeviceGetName(_handle(pynvml, name))))
    except (pynvml.NVMLError, LookupError):
        return ""


def type_of(product: str) -> str:
    """Return the type of a GPU by the name of its product; the size belongs to it where the product has several.

    >>> type_of("NVIDIA A100-SXM4-80GB"), type_of("NVIDIA H100 80GB HBM3"), type_of("NVIDIA L4"), type_of("Tesla T4")
    ('a100-80gb', 'h100', 'l4', 't4')
    >>> type_of("NVIDIA GeForce RTX 4090"), type_of("NVIDIA RTX A6000"), type_of("?")
    ('rtx-4090', 'rtx-a6000', '')
    """
    text = product.lower()
    if found := re.search(r"rtx[ -](?:pro )?(a?\d+)", text):
        return f"rtx-{found[1]}"
    if not (found := re.search(r"\b[a-z]{1,2}\d{1,4}[a-z]?\b", text)):
        return ""
    size = re.search(r"\d+gb", text) if found[0] == "a100" else None
    return f"{found[0]}-{size[0]}" if size else found[0]


def check_gpu_names(devices: Sequence[str]) -> Iterator[str]:
    """Check that NVML can measure each of `devices` that is visible: UUIDs may be abbreviated, but name one GPU."""
    if devices == ["cpu"] or find_spec("pynvml") is None:
        return
    for device in devices:
        is_number = device.startswith("cuda:")
        if is_number and int(device.removeprefix("cuda:")) >= len(visible_gpus()):
            continue
        try:
            with suppress(GpuLost):  # the server runs without it
                gpu_memory(gpu_name(device))
        except LookupError as exc:
            where = "CUDA_VISIBLE_DEVICES" if is_number else "--device"
            yield f"{where}: {exc}; use more of the UUID (nvidia-smi -L shows it), or the GPU's index"


def _handle(nvml: Any, name: str) -> Any:
    if name.isdecimal():
        gpu = nvml.nvmlDeviceGetHandleByIndex(int(name))
        return next(iter(_parts(nvml, gpu)), gpu)
    gpus = list(_present(nvml))
    if name.startswith("MIG-"):
        return _named(nvml, [part for gpu in gpus for part in _parts(nvml, gpu)], name)
    gpu = _named(nvml, gpus, name)
    return next(iter(_parts(nvml, gpu)), gpu)


def _present(nvml: Any) -> Iterator[Any]:
    """Yield the handle of each GPU that is not lost."""
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):
            yield nvml.nvmlDeviceGetHandleByIndex(index)


def _named(nvml: Any, handles: list[Any], name: str) -> Any:
    found = [handle for handle in handles if nvml.nvmlDeviceGetUUID(handle).startswith(name)]
    if len(found) != 1:
        raise LookupError(f"{name} matches the UUIDs of {len(found)} GPUs; it must match one")
    return found[0]


def _parts(nvml: Any, gpu: Any) -> list[Any]:
    """Return handles of the parts of a GPU; empty if it is whole, or the driver does not support parts."""
    parts: list[Any] = []
    with suppress(nvml.NVMLError):
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            with suppress(nvml.NVMLError):  # no part has this index
                parts.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
    return parts
