"""What a forward pass raises when memory is short, and what can be given back. Imports no torch of its own."""

import gc
import sys

# torch's CPU allocator raises a plain RuntimeError with this in its text.
CPU_ALLOCATOR = "can't allocate memory"


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
