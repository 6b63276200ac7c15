"""Base classes: an input kind decodes elements; a processor makes features of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from sie_triton.contract import CHUNK_TOKENS, Features, Part
from sie_triton.contract.tensors import Tensor
from sie_triton.errors import InputError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class InputKind(ABC):
    """A kind of input, such as texts or images. Stateless; any thread may call the methods."""

    name: ClassVar[str]

    # Tensors whose elements are of this kind.
    tensors: ClassVar[tuple[Tensor, ...]]

    # A request beyond either limit, of elements or of their total size, is processed apart from others, in chunks.
    max_elements: int
    max_size: int
    chunk_size: int

    # Error message for an element of which the model reads nothing.
    nothing_read: str

    @abstractmethod
    def decode(self, raw: bytes, where: str) -> Any:
        """Decode one element. InputError begins with `where`."""

    @abstractmethod
    def size(self, element: Any) -> int:
        """Return the size of an element, in the unit of the limits."""

    def is_slow(self, element: Any) -> bool:
        """True if `Processor.prepare` takes long for this element, such as an image or a sound, which is decoded."""
        return False

    @abstractmethod
    def sample_length(self, rng: np.random.Generator) -> int:
        """Draw the length of a typical item, at least 1, for calibration."""

    def read(self, array: npt.NDArray[Any] | None, tensor: Tensor) -> list[Any]:
        """Decode an input, object [1, n] of bytes → n elements. InputError names the first invalid element."""
        name = tensor.name
        if array is None:
            if tensor.optional:
                return []
            raise InputError.at(name, "missing; it is a required input")
        if array.ndim != 2 or array.shape[0] != 1:
            raise InputError.at(name, f"has shape {list(array.shape)}; send a plain vector [n]")
        if array.shape[1] == 0 and not tensor.optional:
            raise InputError.at(name, "is empty; send at least one item")
        return [self.decode(raw, f"{name}[{i}]") for i, raw in enumerate(array[0])]


class Frame(Protocol):
    """The prompt around each element of a part, the same for all of them."""

    @property
    def size(self) -> int:
        """Size of the prompt, in the unit of the input kind."""
        ...

    def around(self, element: Any) -> Any:
        """Return an element with its prompt, as the processor encodes it."""
        ...


@dataclass(frozen=True, slots=True)
class NoFrame:
    size: int = 0

    def around(self, element: Any) -> Any:
        return element


class Processor(ABC):
    """Elements → features. Each family has its own; one object per process, called by several threads."""

    # True if an element has other features as a query than as a document.
    has_roles: ClassVar[bool] = False

    def frame(self, part: Part) -> Frame:
        """Return the prompt of `part`, or raise InputError. Must be quick: other requests wait meanwhile."""
        for name, value in (("instruction", part.instruction), ("prompt_name", part.prompt_name)):
            if value:
                raise InputError.at(f"parameter {name}", "this model does not read one; leave it out")
        return NoFrame()

    def is_query(self, part: Part) -> bool:
        """Return True if the elements of `part` are encoded as queries."""
        return bool(part.is_query)

    def prepare(self, element: Any) -> Any:
        """Convert an element for `frame` and `encode`, or raise InputError. Called by several threads at once."""
        return element

    def cutting(self, part: Part) -> "Processor":
        """Return the processor that cuts long elements of `part` as its options say."""
        return self

    def tokenizer_of(self, part: Part) -> "Tokenizer":
        """Return the tokenizer that cuts the texts of `part`; InputError if they cannot be split into chunks."""
        raise InputError.at(f"parameter {CHUNK_TOKENS.name}", "this model does not split texts; leave it out")

    @abstractmethod
    def encode(self, framed: Sequence[Any], *, is_query: bool) -> Features:
        """Make the features of several requests together. Raise InputError if an element cannot be read.

        `is_query` matters only if `has_roles`.
        """

    def finish(self, features: Features, frame: Frame) -> Features:
        """Complete the features of one part with those that depend on its prompt."""
        return features
