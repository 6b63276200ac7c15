"""What every kind of input has: how its elements are read, and how elements become features."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Features, Part
from sie_triton.contract.tensors import Tensor
from sie_triton.errors import InputError


class InputKind(ABC):
    """One kind of input, of which an element belongs to an item. Holds nothing; may be called by any thread."""

    name: ClassVar[str]

    # Those whose elements are of this kind.
    tensors: ClassVar[tuple[Tensor, ...]]

    # A request past either limit, of elements or of their sizes, is made into features beside the others, in chunks.
    max_elements: int
    max_size: int
    chunk_size: int

    # What is said of an element that the model reads nothing of.
    nothing_read: str

    @abstractmethod
    def decode(self, raw: bytes, where: str) -> Any:
        """One element, or InputError that begins with `where`."""

    @abstractmethod
    def size(self, element: Any) -> int:
        """In the unit of the limits."""

    @abstractmethod
    def sample_length(self, rng: np.random.Generator) -> int:
        """Of an item as clients send them, for calibration; 1 or more."""

    def read(self, array: npt.NDArray[Any] | None, tensor: Tensor) -> list[Any]:
        """An input, object [1, n] of bytes → n elements; InputError names the one that is wrong."""
        name = tensor.name
        if array is None:
            if tensor.optional:
                return []
            raise InputError(f"{name}: missing; it is a required input")
        if array.ndim != 2 or array.shape[0] != 1:
            raise InputError(f"{name}: has shape {list(array.shape)}; send a plain vector [n]")
        if array.shape[1] == 0 and not tensor.optional:
            raise InputError(f"{name}: is empty; send at least one item")
        return [self.decode(raw, f"{name}[{i}]") for i, raw in enumerate(array[0])]


class Frame(Protocol):
    """What is put around each element of a part, the same for all of them."""

    @property
    def size(self) -> int:
        """In the unit of the input kind, for each element."""
        ...

    def around(self, element: Any) -> Any:
        """What the processor encodes."""
        ...


@dataclass(frozen=True, slots=True)
class NoFrame:
    size: int = 0

    def around(self, element: Any) -> Any:
        return element


class Processor(ABC):
    """Elements → features. A family's own; made once a process, and called by several threads."""

    # True where queries become other features than the same elements as documents.
    has_roles: ClassVar[bool] = False

    def frame(self, part: Part) -> Frame:
        """What goes around the elements of `part`; InputError. Quick: it is called while others wait."""
        if part.instruction:
            raise InputError("parameter instruction: this model reads none; leave it out")
        return NoFrame()

    # True where some elements take long to be made ready for `encode`, as images and sounds do that must be decoded.
    prepares: ClassVar[bool] = False

    def is_slow(self, element: Any) -> bool:
        """Whether `prepare` of it takes long."""
        return False

    def prepare(self, element: Any) -> Any:
        """An element as `frame` and `encode` take it; called beside other requests, by several threads. InputError."""
        return element

    @abstractmethod
    def encode(self, framed: Sequence[Any], *, is_query: bool) -> Features:
        """Of several requests together; `is_query` matters where there are roles. InputError if one cannot be read."""

    def finish(self, features: Features, frame: Frame) -> Features:
        """Those of one part, with what depends on its frame."""
        return features
