"""What a family may ask of an engine, and the worker of both."""

import gc
import os
from typing import ClassVar

from sie_triton.measurements import Measurements
from sie_triton.process_memory import anonymous_bytes
from sie_triton.spec import ModelSpec


class Encoder:
    """What an engine has made of a checkpoint: runs one sub-batch, in one of several ways that give the same.

    `forward` and its like are the engine's own, and each family knows the engines it can use. `weights_bytes` is the
    memory of the weights; `paths` are the ways, the usual one first, and `path` is the one in use.
    """

    paths: tuple[str, ...] = ("only",)
    path: str = "only"
    weights_bytes: int = 0

    def use(self, path: str) -> None:
        """Take `path` from now on. Not while a forward pass runs."""
        self.path = path


class Engine:
    """Makes encoders of checkpoints, for one model on one device, in the process that computes.

    `measurements` are those of this model on this machine. Each thread that computes is told how many CPU threads it
    may use; everything else is called by one thread.
    """

    name: ClassVar[str] = ""

    def __init__(self, spec: ModelSpec, device: str, measurements: Measurements) -> None:
        self.spec, self.device, self.measurements = spec, device, measurements

    def use_threads(self, count: int) -> None:
        """For forward passes of the calling thread."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def free_unused_memory(self) -> None:
        gc.collect()

    def used_bytes(self) -> int:
        """What this process takes of the device's memory."""
        return anonymous_bytes(os.getpid())
