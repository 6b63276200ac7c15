"""Errors caused by the machine, not by the model."""

import torch

# PyTorch raises most of these as plain RuntimeErrors: the CPU allocator, CUDA's runtime and driver, and its libraries.
OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
OF_DEVICE = ("CUDA error", "CUDA driver error", "cuDNN error")


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or _says(error, OUT_OF_MEMORY)


def is_of_machine(error: BaseException) -> bool:
    """True if the model could succeed once a package, the device or a lack of memory is repaired."""
    return isinstance(error, ImportError | OSError) or is_out_of_memory(error) or _says(error, OF_DEVICE)


def _says(error: BaseException, texts: tuple[str, ...]) -> bool:
    """True for a RuntimeError with one of `texts`; torch.AcceleratorError is a RuntimeError too."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
