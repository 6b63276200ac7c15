"""Errors caused by the machine, not by the model, and what PyTorch holds on a GPU afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from sie_triton.checkpoints.files import first_line
from sie_triton.errors import LoadError, SIEError

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


def is_unusable(device: str) -> bool:
    """True after an error inside a kernel: it persists in this process, and every later CUDA call raises it again.

    This waits for a stream, not for the whole device: another thread may be recording a CUDA graph.
    """
    try:
        if device != "cpu":
            torch.cuda.current_stream(device).synchronize()
    except RuntimeError:
        return True
    return False


def empty_cache() -> None:
    """Return the GPU memory that PyTorch caches."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


@contextmanager
def refusing_the_uncomputable() -> Iterator[None]:
    """Raise LoadError if transformers fails within the context, unless the machine or this package is the reason."""
    try:
        yield
    except Exception as exc:
        if is_of_machine(exc) or isinstance(exc, SIEError):
            raise
        raise LoadError(f"transformers cannot compute this model: {first_line(exc)}", "unsupported") from exc


def _says(error: BaseException, texts: tuple[str, ...]) -> bool:
    """True for a RuntimeError with one of `texts`; torch.AcceleratorError is a RuntimeError too."""
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
