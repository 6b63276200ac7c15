"""Preparation of slow elements, such as images and sounds: several threads work on one request.

A PDF becomes its pages.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from threading import Lock
from typing import Any

from sie_triton.contract import Features
from sie_triton.contract.tensors import QUERY
from sie_triton.models.inputs import Processor
from sie_triton.models.inputs.decoding import stopping
from sie_triton.models.inputs.features import join
from sie_triton.models.inputs.pdf_pages import PageReader, pdf_in
from sie_triton.models.inputs.request_parts import Framed, RequestParts
from sie_triton.pipeline.scheduling.preprocess_slots import Slots

# Page numbers that were read of each item.
Pages = list[list[int]]


def takes_long(request_parts: RequestParts) -> bool:
    """True if any element takes long. A query that is read with each element is prepared with the first."""
    return any(
        framed.kind.is_slow(element)
        for framed in request_parts
        for element in (*framed.part.elements, *([framed.part.query] if framed.part.query is not None else []))
    )


class Preparation:
    """Preparation of the elements of one request, by several strands.

    Each strand takes the next element that no strand has taken; the last strand to end calls `done` with all elements.
    Strands stop once `is_over()`, also while they decode an image. An exception of `Processor.prepare` ends its strand,
    and then `done` is not called.
    A slow element takes one of the server's `slots`, and so does drawing a page; `done` is called without one.
    """

    def __init__(
        self,
        processor: Processor,
        request_parts: RequestParts,
        reader: PageReader,
        is_over: Callable[[], bool],
        done: Callable[[RequestParts, Pages], None],
        slots: Slots,
    ) -> None:
        self._processor, self._parts, self._reader, self._slots = processor, request_parts, reader, slots
        self._is_over, self._done, self._is_slow = is_over, done, request_parts[0].kind.is_slow
        self._elements = [element for framed in request_parts for element in framed.part.elements]
        self._num_items = sum(len(framed.part.elements) for framed in request_parts if framed.part.name != QUERY.name)
        self._prepared: list[list[Any]] = [[] for _ in self._elements]
        self._pages: Pages = [[] for _ in range(self._num_items)]
        self._lock = Lock()
        self._places = iter(range(len(self._elements)))  # shared by the strands; its `next` is atomic
        self._num_running = 0

    @property
    def draws_pages(self) -> bool:
        """True if any item is a PDF, whose drawing may take arbitrarily long."""
        return any(map(pdf_in, self._elements[: self._num_items]))

    def strands(self, most: int) -> Sequence[Iterator[None]]:
        """Return up to `most` strands, each for a separate thread. One step of a strand prepares one element."""
        num_slow = sum(map(self._is_slow, self._elements))
        self._num_running = max(1, min(most, num_slow))
        return [self._strand() for _ in range(self._num_running)]

    def _strand(self) -> Iterator[None]:
        for place in self._places:
            for element in self._read(place):
                is_slow = self._is_slow(element)
                with self._slots.image() if is_slow else nullcontext():
                    if self._is_over():
                        return
                    with stopping(self._is_over):
                        self._prepared[place].append(self._processor.prepare(element))
                if is_slow:
                    yield
        if self._is_last():
            self._done(self._together(), self._pages)

    def _read(self, place: int) -> Iterator[Any]:
        """Yield an element, or its pages if it is a PDF. A query is not an item, and cannot be a PDF."""
        element = self._elements[place]
        pages = self._reader.pages(element) if place < self._num_items else None
        if pages is None:
            yield element
            return
        while (drawn := self._next_page(pages)) is not None:
            number, page = drawn
            self._pages[place].append(number)
            yield page

    def _next_page(self, pages: Iterator[tuple[int, Any]]) -> tuple[int, Any] | None:
        with self._slots.drawing():
            return next(pages, None)

    def _is_last(self) -> bool:
        with self._lock:
            self._num_running -= 1
            return self._num_running == 0

    def _together(self) -> list[Framed]:
        prepared = iter(self._prepared)
        return [
            replace(
                framed,
                part=replace(framed.part, elements=[one for _ in framed.part.elements for one in next(prepared)]),
            )
            for framed in self._parts
        ]


class Tokenization:
    """Features of one bulk request, made by several strands.

    Each strand takes the next chunk that no strand has taken, and for each chunk one of the server's `slots`; the last
    strand to end calls `done` with all features, without a slot. Strands stop once `is_over()`. An exception of
    `encode` ends its strand, and then `done` is not called.
    """

    def __init__(
        self,
        request_parts: RequestParts,
        encode: Callable[[RequestParts], Features],
        is_over: Callable[[], bool],
        done: Callable[[Features], None],
        slots: Slots,
    ) -> None:
        self._chunks = [chunk for framed in request_parts for chunk in framed.chunks()]
        self._encode, self._is_over, self._done, self._slots = encode, is_over, done, slots
        self._features: list[Features] = [{} for _ in self._chunks]
        self._lock = Lock()
        self._places = iter(range(len(self._chunks)))  # shared by the strands; its `next` is atomic
        self._num_done = 0

    def strands(self, most: int) -> Sequence[Iterator[None]]:
        """Return up to `most` strands, each for a thread of its own."""
        return [self._strand() for _ in range(min(most, len(self._chunks)))]

    def _strand(self) -> Iterator[None]:
        for place in self._places:
            with self._slots.bulk():
                if self._is_over():
                    return
                self._features[place] = self._encode([self._chunks[place]])
            if self._is_last():
                self._done(join(self._features))
            yield

    def _is_last(self) -> bool:
        with self._lock:
            self._num_done += 1
            return self._num_done == len(self._chunks)
