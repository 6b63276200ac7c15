"""PyTorch's context on a GPU, which ONNX Runtime shares in the same process."""

import torch


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
