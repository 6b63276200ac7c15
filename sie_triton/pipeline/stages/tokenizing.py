"""Tokenization of a bulk request: several strands make its features, a chunk of the request each step."""

from collections.abc import Callable, Iterator, Sequence
from threading import Lock

from sie_triton.contract import Features
from sie_triton.models.inputs.features import join
from sie_triton.models.inputs.request_parts import RequestParts
from sie_triton.pipeline.scheduling.preprocess_slots import Slots


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
