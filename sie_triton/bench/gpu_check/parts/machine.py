"""What is here: the device, the libraries, which kernels can run; and how fast it multiplies."""

import platform
import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from sie_triton.bench.gpu_check.scope import Finding, Plan
from sie_triton.bench.lanes import timed
from sie_triton.device import visible_gpus
from sie_triton.engines.torch.attention.kernels import KERNELS, choose_kernel, why_not

PACKAGES = ("torch", "transformers", "sentence-transformers", "flash-attn", "numpy", "nvidia-ml-py")


def describe(plan: Plan) -> Iterator[Finding]:
    """The machine, and what each kernel lacks on it."""
    device = torch.device(plan.device)
    entry: dict[str, Any] = {"device": plan.device, "name": platform.processor() or "CPU"}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        capability = f"{properties.major}.{properties.minor}"
        entry |= {"name": properties.name, "capability": capability, "bytes": properties.total_memory}
        entry |= {"visible": visible_gpus(), "cuda": torch.version.cuda}
    entry["python"] = platform.python_version()
    entry["packages"] = {name: installed for name in PACKAGES if (installed := _version(name))}
    for precision in ("float32", "float16", "bfloat16"):
        dtype = getattr(torch, precision)
        entry[precision] = {name: why_not(name, device, dtype) or "runs" for name in KERNELS}
        entry[precision]["auto"] = choose_kernel("auto", device, dtype)
    kernels = ", ".join(f"{name}: {lacks}" for name, lacks in entry[plan.precision].items())
    yield "machine", f"{entry['name']}, torch {entry['packages']['torch']}; {kernels}", entry


def peak(plan: Plan) -> float:
    """FLOP/s of a large matrix product in the precision that is timed, now: the median of several."""
    size = 256 if plan.is_dry else 8192
    dtype = getattr(torch, plan.precision)
    left, right = (torch.randn(size, size, device=plan.device, dtype=dtype) for _ in range(2))
    multiply = finished(plan, lambda: left @ right)
    multiply()
    return statistics.median(2.0 * size**3 / timed(multiply) for _ in range(15))


def finished(plan: Plan, work: Callable[[], Any]) -> Callable[[], None]:
    """`work`, and waiting until the device has done it."""

    def run() -> None:
        work()
        if not plan.is_dry:
            torch.cuda.synchronize(plan.device)

    return run


def _version(name: str) -> str:
    with suppress(PackageNotFoundError):
        return version(name)
    return ""
