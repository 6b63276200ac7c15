"""Utilisation of this machine's GPUs while something runs, by NVML."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pynvml

from sie_triton.system.host.repeated import repeated


@contextmanager
def utilisation() -> Iterator[list[int]]:
    """Context manager; gives a list to which a thread adds the utilisation of each GPU, in percent, ten times a second.

    It stays empty if NVML or a GPU is missing.
    """
    samples: list[int] = []
    try:
        pynvml.nvmlInit()
        gpus = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:  # no driver
        gpus = []

    def sample() -> None:
        with suppress(pynvml.NVMLError):  # a part of a GPU (MIG) does not tell
            samples.extend(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu for gpu in gpus)

    sample()
    with repeated(sample, 0.1, "sie-eval-gpu"):
        yield samples
