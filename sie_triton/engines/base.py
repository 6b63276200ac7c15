"""The interface of engines and encoders, which families and the worker use."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from sie_triton.contract.arrays import Array
from sie_triton.contract.spec import ModelSpec
from sie_triton.engines.measurements import Measurements
from sie_triton.errors import LoadError
from sie_triton.system.host.process_memory import return_freed, share_of

# Tensors that a model returns, by name.
Answers = Mapping[str, Array]


class Overflow(LoadError):
    """The model's values exceed the range of the engine's number format; see Engine.widen."""


class Unusable(Exception):
    """Raised when this process can no longer compute reliably and must exit; its stage starts a replacement."""


class Encoder:
    """A loaded checkpoint that runs sub-batches, by one of several paths with equal results.

    Each engine defines its own methods to compute, such as `forward`; each family knows the engines that it can use.
    """

    paths: tuple[str, ...] = ("only",)  # the default first
    path: str = "only"  # in use
    weights_bytes: int = 0

    def use(self, path: str) -> None:
        """Switch to `path`. Must not be called while a forward pass runs."""
        self.path = path

    def add_lora(self, name: str, directory: Path) -> int:
        """Load the LoRA adapter in `directory` under `name`; return its size in bytes. Forward passes may run.

        Raise LoadError if it cannot be used; the encoder is unchanged then.
        """
        raise LoadError("this model's engine does not support LoRA adapters", "unsupported")

    def remove_lora(self, name: str) -> None:
        """Remove a LoRA adapter. No forward pass that uses it may be running."""

    @contextmanager
    def adapted(self, loras: Sequence[str]) -> Iterator[None]:
        """Within the context, forward passes of this thread apply LoRA adapter `loras[i]` to item i.

        "" applies none; an empty `loras` applies none to any item.
        """
        yield


class Engine:
    """Loads checkpoints as encoders, for one model on one device, in the worker process.

    `measurements`: those of this model on this machine. Each thread that computes calls `use_threads`; a single thread
    calls everything else.
    """

    name: ClassVar[str] = ""

    def __init__(self, spec: ModelSpec, device: str, measurements: Measurements) -> None:
        self.spec, self.device, self.measurements = spec, device, measurements

    # True: graphs are files that a separate process exports. False: graphs are recorded from the loaded model.
    graphs_are_files: bool = True

    def widen(self) -> None:
        """Switch to a number format with a larger range after Overflow; the caller then reloads the model.

        Raise LoadError if there is no such format, or the configuration forbids it.
        """
        raise LoadError("this model's numbers overflow", "unsupported")

    def round_weights(self, answers: Callable[[], Answers], difference: Callable[[Answers, Answers], str]) -> int:
        """Round the weights of a loaded model if its configuration asks for it; return the bytes that this saves.

        `answers` computes the model's answers to a few items; `difference` says how two of them differ, if they do.
        Raise LoadError if they differ.
        """
        return 0

    def may_have_graphs(self) -> Mapping[str, Encoder]:
        """Return the encoders that a graph may speed up, by part of the model; "" if the model has a single part."""
        return {}

    def take_graph(
        self, part: str, path: Path, num_threads: int, seconds: Callable[[Callable[[], object]], float]
    ) -> int:
        """Let the encoder of `part` run small sub-batches as a graph, if its results are equal and it is faster.

        `path`: the exported graph, if graphs are files. `seconds` times a call. Forward passes may run meanwhile.
        Return the largest cost that the graph is used for; 0 if it is not used.
        """
        return 0

    def refuse_graphs(self, reason: str) -> None:
        """Record that this model has no graphs, and why."""

    def use_threads(self, count: int) -> None:
        """Set the number of CPU threads for forward passes of the calling thread."""

    def release_threads(self) -> None:
        """Release the helper threads of the calling thread while it is idle; they would slow other threads down."""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def is_broken(self, error: BaseException) -> bool:
        """True if `error`, of a pass, has left the device unusable for this process; every later pass would fail."""
        return False

    def free_unused_memory(self) -> None:
        return_freed()

    def used_bytes(self) -> int:
        """Device memory, in bytes, that ending this process frees."""
        return share_of(os.getpid()).own
