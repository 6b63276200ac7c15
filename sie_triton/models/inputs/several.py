"""Items of several kinds of input: each item maps its kinds to elements."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sie_triton.contract.tensors import TEXT
from sie_triton.errors import InputError
from sie_triton.models.inputs.base import InputKind


def check_alone(item: Mapping[str, Any], kind: str) -> None:
    """Raise InputError if an item has both a text and an image or sound, but the model reads only one of them."""
    if TEXT.name in item:
        where = item[kind].where
        raise InputError.at(
            where,
            f"the same item has {TEXT.name}, and this model reads either {TEXT.name} or {kind} of an item; "
            "send them as two items",
        )


class SeveralInputs(InputKind):
    """Items of several kinds. Sizes are sums over the kinds; limits are the smallest of any kind."""

    name = "items"
    tensors = ()

    def __init__(self, kinds: Sequence[InputKind]) -> None:
        self._kinds: Mapping[str, InputKind] = {kind.name: kind for kind in kinds}
        self.max_elements = min(kind.max_elements for kind in kinds)
        self.max_size = min(kind.max_size for kind in kinds)
        self.chunk_size = min(kind.chunk_size for kind in kinds)
        self.nothing_read = kinds[0].nothing_read

    def decode(self, raw: bytes, where: str) -> Any:
        raise TypeError("items come in the tensors of their kinds")

    def size(self, element: Any) -> int:
        return sum(self._kinds[kind].size(each) for kind, each in element.items())

    def is_slow(self, element: Any) -> bool:
        return any(self._kinds[kind].is_slow(each) for kind, each in element.items())

    def sample_length(self, rng: np.random.Generator) -> int:
        return max(kind.sample_length(rng) for kind in self._kinds.values())
