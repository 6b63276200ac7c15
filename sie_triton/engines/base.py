"""What a family may ask of an engine, and the worker of both."""

import gc
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from sie_triton.errors import LoadError
from sie_triton.measurements import Measurements
from sie_triton.process_memory import share_of
from sie_triton.spec import ModelSpec


class Overflow(LoadError):
    """The number format of the engine does not hold what this model computes; see Engine.widen."""


class Unusable(Exception):
    """This process cannot be trusted to compute any more, and has to end; its stage starts another."""


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

    def add_lora(self, name: str, directory: Path) -> int:
        """Hold the LoRA adapter in `directory` under that name, beside forward passes that run; the bytes it takes.

        LoadError says what in it cannot be used, and nothing has changed then.
        """
        raise LoadError("this model's engine takes no LoRA adapters", "unsupported")

    def remove_lora(self, name: str) -> None:
        """Forget it. No forward pass that uses it may run."""

    @contextmanager
    def adapted(self, loras: Sequence[str]) -> Iterator[None]:
        """Inside, on this thread, forward passes run each item through the adapter of its place in `loras`.

        "": through none. Empty: no item has one.
        """
        yield


class Engine:
    """Makes encoders of checkpoints, for one model on one device, in the process that computes.

    `measurements` are those of this model on this machine. Each thread that computes is told how many CPU threads it
    may use; everything else is called by one thread.
    """

    name: ClassVar[str] = ""

    def __init__(self, spec: ModelSpec, device: str, measurements: Measurements) -> None:
        self.spec, self.device, self.measurements = spec, device, measurements

    # Graphs are files, which a process of its own writes; else they are made of what is in memory.
    graphs_are_files: bool = True

    def widen(self) -> None:
        """After Overflow, compute in a format of a larger range from now on; LoadError if there is none, or none may be
        taken. The model is loaded again then."""
        raise LoadError("this model's numbers overflow", "unsupported")

    def may_have_graphs(self) -> Mapping[str, Encoder]:
        """Encoders that may be faster as graphs, by the part of the model that they are, "" where it has but one."""
        return {}

    def take_graph(
        self, part: str, path: Path, num_threads: int, seconds: Callable[[Callable[[], object]], float]
    ) -> int:
        """Let that encoder run small sub-batches by a graph, where that is the same, and faster.

        It is at `path` where they are files. Beside forward passes; how long a call takes `seconds` says. The largest
        cost that it takes, 0: none.
        """
        return 0

    def refuse_graphs(self, reason: str) -> None:
        """Remember that there are none, and why."""

    def use_threads(self, count: int) -> None:
        """For forward passes of the calling thread."""

    def release_threads(self) -> None:
        """The calling thread computes nothing for a while: others are faster without those that wait for it."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def is_broken(self) -> bool:
        """True if an error has left the device unusable for this process, so that every later pass would fail."""
        return False

    def free_unused_memory(self) -> None:
        gc.collect()

    def used_bytes(self) -> int:
        """Device memory, in bytes, that ending this process frees."""
        return share_of(os.getpid()).own
