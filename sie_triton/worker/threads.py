"""How many CPU threads a forward pass uses."""

import threading

_used = threading.local()


def use_threads(device: str, count: int) -> None:
    """For forward passes of the calling thread.

    PyTorch keeps the number per thread, but a thread's first use copies the one that was last set anywhere.
    """
    if device == "cpu" and getattr(_used, "count", None) != count:
        import torch

        torch.set_num_threads(count)
        _used.count = count
