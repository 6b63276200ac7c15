"""The same memory by three accounts: ours, PyTorch's, the driver's."""

import os
from contextlib import suppress

import torch

from sie_triton.bench.gpu_check.scope import Plan
from sie_triton.controller.memory import Meter
from sie_triton.engines.torch.engine import used_bytes


def account(plan: Plan) -> dict[str, int]:
    """Bytes: `used` as a worker reports it, `controller` as the controller measures the device."""
    bytes_of = {"used": used_bytes(plan.device)}
    with suppress(Exception):  # no NVML here
        bytes_of["controller"] = Meter(plan.device, 0).measure(os.getpid()).used
    if plan.device == "cpu":
        return bytes_of
    bytes_of["torch_allocated"] = torch.cuda.memory_allocated(plan.device)
    bytes_of["torch_reserved"] = torch.cuda.memory_reserved(plan.device)
    free, total = torch.cuda.mem_get_info(plan.device)
    return bytes_of | {"driver_used": total - free} | _nvml()


def _nvml() -> dict[str, int]:
    """What NVML says of this process, where it can tell processes apart."""
    with suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid() and process.usedGpuMemory:
                    return {"nvml_process": int(process.usedGpuMemory)}
    return {}
