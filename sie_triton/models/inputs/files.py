"""Base of input kinds whose elements are files."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from sie_triton.models.inputs.base import InputKind


@dataclass(frozen=True, slots=True)
class File:
    """A file of a request; `where` names it in errors."""

    content: bytes
    where: str

    def __len__(self) -> int:
        return len(self.content)


class FileInput(InputKind):
    """Files of type `file`. Sizes are in bytes."""

    file: ClassVar[type[File]]

    max_elements = 16
    max_size = 1024 * 1024
    chunk_size = 1024 * 1024

    def decode(self, raw: bytes, where: str) -> File:
        return self.file(raw, where)

    def size(self, element: Any) -> int:
        return len(element)

    def is_slow(self, element: Any) -> bool:
        return True

    def sample_length(self, rng: np.random.Generator) -> int:
        return 1
