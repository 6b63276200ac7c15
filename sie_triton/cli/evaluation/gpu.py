"""Utilisation of this machine's GPUs while something runs, by NVML."""

import threading
from contextlib import suppress
from statistics import fmean
from typing import Any


class Utilisation:
    """Context manager; `percent` is then the mean utilisation of all GPUs, or None if NVML or a GPU is missing.

    A thread asks NVML ten times a second.
    """

    def __init__(self) -> None:
        self.percent: float | None = None
        self._samples: list[int] = []
        self._is_over = threading.Event()
        self._nvml, self._gpus = _gpus()
        self._thread = threading.Thread(target=self._sample, name="sie-eval-gpu", daemon=True)

    def __enter__(self) -> "Utilisation":
        if self._gpus:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._gpus:
            self._is_over.set()
            self._thread.join()
        if self._samples:
            self.percent = fmean(self._samples)

    def _sample(self) -> None:
        with suppress(self._nvml.NVMLError):  # a part of a GPU (MIG) does not tell
            while True:
                self._samples += [self._nvml.nvmlDeviceGetUtilizationRates(gpu).gpu for gpu in self._gpus]
                if self._is_over.wait(0.1):
                    return


def _gpus() -> tuple[Any, list[Any]]:
    """Return NVML and its GPUs; none if there is no driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return pynvml, [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return pynvml, []
