"""The device, driver, libraries and usable kernels; rates of matrix products, copies and launches."""

import os
import platform
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch.nn.attention import SDPBackend

from benchmarks.gpu_check.scope import Finding, Plan
from benchmarks.gpu_check.timing import peak_flops, seconds_of
from sie_triton.engines.torch.attention.kernels import KERNELS, choose_kernel, reason_unusable
from sie_triton.server.preflight import driver_version
from sie_triton.system.host.container import num_processors
from sie_triton.system.host.device import visible_gpus

PACKAGES = ("torch", "transformers", "sentence-transformers", "flash-attn", "triton", "numpy", "nvidia-ml-py", "psutil")
DTYPES = ("float32", "float16", "bfloat16")

Facts = dict[str, Callable[[], object]]


def describe(plan: Plan) -> Iterator[Finding]:
    """Report facts about the machine, and why kernels cannot run on it."""
    facts = {**_device(plan), **_libraries(), **_attention(plan), **_rates(plan)}
    for what, ask in facts.items():
        try:
            value = str(ask())
        except Exception as exc:
            value = f"unknown ({type(exc).__name__}: {exc})"[:200]
        yield Finding("machine", f"{what}: {value}", {"what": what, "value": value})
    yield from _kernels(plan)


def _device(plan: Plan) -> Facts:
    system = {
        "system": platform.platform,
        "processors": lambda: f"{num_processors()} usable of {os.cpu_count()}",
    }
    if not plan.is_gpu:
        return {"device": lambda: platform.processor() or "CPU", **system}
    properties = torch.cuda.get_device_properties(plan.device)
    return {
        "device": lambda: properties.name,
        "compute capability": lambda: f"{properties.major}.{properties.minor}",
        "multiprocessors": lambda: properties.multi_processor_count,
        "memory": lambda: "{:.1f} GB free of {:.1f}".format(*(n / 1e9 for n in torch.cuda.mem_get_info(plan.device))),
        "GPUs": lambda: f"{', '.join(visible_gpus())}; CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')}",
        "driver": lambda: driver_version().strip(),
        "power, clock, heat": lambda: (
            f"{torch.cuda.power_draw(plan.device) / 1000:.0f} W, {torch.cuda.clock_rate(plan.device)} MHz, "
            f"{torch.cuda.temperature(plan.device)} °C"
        ),
        "other processes": lambda: torch.cuda.list_gpu_processes(plan.device).replace("\n", "; "),
        **system,
    }


def _libraries() -> Facts:
    return {
        "Python": platform.python_version,
        "packages": lambda: ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "CUDA of PyTorch": lambda: torch.version.cuda,
        "cuDNN": torch.backends.cudnn.version,
        "import flash_attn": lambda: getattr(import_module("flash_attn"), "__version__", "no version"),
        "allocator": lambda: os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF"),
    }


def _attention(plan: Plan) -> Facts:
    """The order of SDPA's backends, and which of them it takes for inputs as models have them."""
    dtype = getattr(torch, plan.precision)
    query = torch.zeros(2, 8, 64, 64, device=plan.device, dtype=dtype)
    grouped, mask = query[:, :2], torch.ones(64, 64, device=plan.device, dtype=torch.bool)

    def order() -> str:
        return ", ".join(SDPBackend(each).name for each in torch._C._get_sdp_priority_order())

    def choice(key: torch.Tensor, mask: torch.Tensor | None) -> str:
        options: Any = {"enable_gqa": key is grouped}
        return str(SDPBackend(torch._fused_sdp_choice(query, key, key, mask, **options)).name)

    return {
        "SDPA's order": order,
        "SDPA may use cuDNN": torch.backends.cuda.cudnn_sdp_enabled,
        "SDPA's choice": lambda: f"{choice(query, None)}, with a mask {choice(query, mask)}",
        "SDPA's choice for GQA": lambda: f"{choice(grouped, None)}, with a mask {choice(grouped, mask)}",
    }


def _rates(plan: Plan) -> Facts:
    size = 2**20 if plan.is_dry else 2**28
    tiny = torch.zeros(16, device=plan.device)

    def copy(*, is_pinned: bool) -> str:
        source = torch.zeros(size, dtype=torch.uint8, pin_memory=is_pinned and plan.is_gpu)
        return f"{size / seconds_of(plan, lambda: source.to(plan.device, copy=True)) / 1e9:.1f} GB/s"

    def launch() -> str:
        def add() -> None:
            for _ in range(1000):
                tiny.add_(1)

        return f"{1e3 * seconds_of(plan, add):.1f} µs"

    return {
        **{f"matrix products in {name}": lambda name=name: _peak(plan, name) for name in DTYPES},  # type: ignore[misc]
        "copies to the device, pageable": lambda: copy(is_pinned=False),
        "copies to the device, pinned": lambda: copy(is_pinned=True),
        "launch of a kernel": launch,
        "launch and wait": lambda: f"{1e6 * seconds_of(plan, lambda: tiny.add_(1)):.1f} µs",
    }


def _peak(plan: Plan, name: str) -> str:
    return f"{peak_flops(plan, name) / 1e12:.1f} TFLOP/s"


def _kernels(plan: Plan) -> Iterator[Finding]:
    device = torch.device(plan.device)
    for kernel in KERNELS:
        row = {name: reason_unusable(kernel, device, getattr(torch, name)) or "runs" for name in DTYPES}
        yield Finding(
            "kernels", f"kernel {kernel}: {', '.join(map(': '.join, row.items()))}", {"kernel": kernel, **row}
        )
    row = {name: choose_kernel("auto", device, getattr(torch, name)) for name in DTYPES}
    yield Finding("kernels", f"chosen by itself: {', '.join(map(': '.join, row.items()))}", {"kernel": "auto", **row})


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
