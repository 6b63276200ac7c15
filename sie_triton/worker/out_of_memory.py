"""What a forward pass raises when memory is short, and what can be given back. Imports no torch of its own."""

import gc
import os
import sys
from contextlib import suppress
from pathlib import Path

# torch's CPU allocator raises a plain RuntimeError with this in its text.
CPU_ALLOCATOR = "can't allocate memory"

# What CUDA itself takes on the device for each process, roughly.
CUDA_CONTEXT_BYTES = 500_000_000


def is_out_of_memory(error: BaseException) -> bool:
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and CPU_ALLOCATOR in str(error))
    )


def free_unused_memory() -> None:
    """Collect what nobody refers to, and return what PyTorch keeps of a GPU's memory for later."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def used_bytes(device: str) -> int:
    """What this process takes: on a GPU what PyTorch holds there; on a CPU its share of anonymous memory."""
    if device != "cpu":
        import torch

        return int(torch.cuda.memory_reserved(device)) + CUDA_CONTEXT_BYTES
    return anonymous_bytes(os.getpid())


def anonymous_bytes(pid: int) -> int:
    """Memory that is no file's, what forked processes have in common in equal parts; 0 if there is no such process."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss_Anon:"):
                return int(line.split()[1]) * 1024
    return 0
