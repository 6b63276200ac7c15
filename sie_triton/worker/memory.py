"""What a forward pass raises when memory is short, and what can be given back. Imports no torch of its own."""

import gc
import sys
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
    """What would be free if this process ended: on a CPU pages that are neither a file's nor shared."""
    if device != "cpu":
        import torch

        return int(torch.cuda.memory_reserved(device)) + CUDA_CONTEXT_BYTES
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * 4096
