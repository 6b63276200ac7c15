"""A request on its way to features: its parts, the prompts around their elements, and its size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from sie_triton.contract import Features, Part
from sie_triton.contract.tensors import LABELS, PIECE, QUERY
from sie_triton.errors import InputError
from sie_triton.models.inputs.base import Frame, InputKind, Processor
from sie_triton.models.inputs.features import join, num_pieces, split
from sie_triton.models.inputs.text import reading


@dataclass(frozen=True, slots=True)
class Framed:
    """A part, or some of its elements, and the prompt around each element."""

    part: Part
    frame: Frame
    kind: InputKind

    @property
    def size(self) -> int:
        """Size of all elements with their prompts, in the unit of the input kind."""
        elements = self.part.elements
        return sum(map(self.kind.size, elements)) + len(elements) * self.frame.size

    def inputs(self) -> list[Any]:
        """Return the elements with their prompts, as the processor encodes them."""
        return list(map(self.frame.around, self.part.elements))

    def chunks(self) -> Iterator["Framed"]:
        """Cut into chunks of consecutive elements, at least one each, with a total size of about `chunk_size`."""
        start = size = 0
        elements = self.part.elements
        for i, element in enumerate(elements):
            size += self.kind.size(element) + self.frame.size
            if size >= self.kind.chunk_size or i == len(elements) - 1:
                yield Framed(replace(self.part, elements=elements[start : i + 1]), self.frame, self.kind)
                start, size = i + 1, 0


RequestParts = Sequence[Framed]


def is_bulk(request_parts: RequestParts) -> bool:
    """True if the request is so large that its features are made apart from those of other requests."""
    first = request_parts[0]
    return (
        len(first.part.elements) > first.kind.max_elements or sum([f.size for f in request_parts]) > first.kind.max_size
    )


def features_of(processor: Processor, requests: Sequence[RequestParts]) -> list[Features]:
    """Make the features of each request, with one call of the processor per role and side on which texts are cut."""
    done: dict[int, Features] = {}
    groups: dict[tuple[Processor, bool], list[Framed]] = {}
    for framed in chain.from_iterable(requests):
        is_query = processor.has_roles and processor.is_query(framed.part)
        groups.setdefault((processor.cutting(framed.part), is_query), []).append(framed)
    for (reader, is_query), group in groups.items():
        inputs: list[Any] = []
        for each in group:
            inputs += each.inputs()
        features = reader.encode(inputs, is_query=is_query)
        for each, part in zip(group, split(features, _items_of(group, features)), strict=True):
            done[id(each)] = processor.finish(part, each.frame)
    return [join([done[id(each)] for each in request_parts]) for request_parts in requests]


def _items_of(group: RequestParts, features: Features) -> list[int]:
    """Return the number of items of each part in `features`: an element may be read in several pieces."""
    counts = [len(each.part.elements) for each in group]
    if PIECE.name not in features:
        return counts
    pieces = num_pieces(features, sum(counts))
    return [int(each.sum()) for each in np.split(pieces, np.cumsum(counts)[:-1])]


def blame(processor: Processor, request_parts: RequestParts) -> None:
    """Find the element that the processor cannot read. InputError names it; other errors are raised as they are."""
    for framed in request_parts:
        part = framed.part
        if part.query is not None or part.labels:
            with reading(LABELS.name if part.labels else QUERY.name):
                framed.frame.around(part.elements[0])
        for i, element in enumerate(part.elements):
            with reading(name_of(part, i)):
                processor.cutting(part).encode([framed.frame.around(element)], is_query=processor.is_query(part))


def check_read(request_parts: RequestParts, lengths: Sequence[int]) -> None:
    """Raise InputError for the first element of which the model reads nothing; `lengths` are those of all elements."""
    start = 0
    for framed in request_parts:
        for i, length in enumerate(lengths[start : start + len(framed.part.elements)]):
            if not length:
                raise InputError.at(name_of(framed.part, i), framed.kind.nothing_read)
        start += len(framed.part.elements)


def name_of(part: Part, i: int) -> str:
    """Return the client's name of an element."""
    return part.name if part.name == QUERY.name else f"{part.name}[{i}]"
