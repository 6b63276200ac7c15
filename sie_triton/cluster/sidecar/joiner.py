"""Calls Triton for many requests at a time: those that wait for the same model go together, as soon as a call ends.

No request waits for others to come: up to `max_calls` calls of a model are made at once. While they run, further
requests gather, and the next call takes all that want the same.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from sie_triton.cluster.sidecar.joining import NotJoinable, joined, key_of, num_items_of, split
from sie_triton.cluster.sidecar.metrics import observe_joined
from sie_triton.cluster.sidecar.triton import LocalTriton, Response

log = logging.getLogger(__name__)

# Limits of a joined request, as of the pieces in which SIE's clients send many items.
MAX_ITEMS, MAX_BYTES = 512, 256 * 1024

# Kinds of request that could not be split: the latest of them are kept.
MAX_APART = 1000


@dataclass(slots=True)
class _Waiting:
    key: bytes | None
    message: Any
    data: bytes
    ends_at: float
    response: asyncio.Future[Response] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(slots=True)
class _Model:
    num_calls: int = 0
    waiting: deque[_Waiting] = field(default_factory=deque)


class Joiner:
    """Belongs to one event loop. `max_calls`: calls of one model at a time; `max_requests`: requests of one call."""

    def __init__(self, triton: LocalTriton, max_calls: int, max_requests: int) -> None:
        self._triton = triton
        self._max_calls, self._max_requests = max_calls, max_requests
        self._models: dict[str, _Model] = {}
        self._apart: OrderedDict[bytes, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(self, model: str, request: bytes, seconds: float) -> Response:
        """Return Triton's response to a ModelInferRequest, which has so many seconds."""
        state = self._models.setdefault(model, _Model())
        if state.num_calls >= self._max_calls:
            message = service_pb2.ModelInferRequest.FromString(request)
            key = key_of(message)
            waiting = _Waiting(key, message, request, monotonic() + seconds)
            state.waiting.append(waiting)
            return await waiting.response
        state.num_calls += 1
        try:
            return await self._triton.call("ModelInfer", request, seconds)
        finally:
            state.num_calls -= 1
            self._go_on(model, state)

    def _go_on(self, model: str, state: _Model) -> None:
        """Make the next call, now that one has ended."""
        while state.waiting and state.num_calls < self._max_calls:
            together = self._taken(state.waiting)
            if together:
                state.num_calls += 1
                task = asyncio.create_task(self._call(model, state, together))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if not state.waiting and not state.num_calls:
            self._models.pop(model, None)

    def _taken(self, waiting: deque[_Waiting]) -> list[_Waiting]:
        """Take the first request and those behind it that can be joined with it."""
        first = waiting.popleft()
        taken, others = [first], deque[_Waiting]()
        num_items, num_bytes = num_items_of(first.message) or 0, len(first.data)
        can_be_joined = first.key is not None and first.key not in self._apart
        while waiting and can_be_joined and len(taken) < self._max_requests:
            each = waiting.popleft()
            items, size = num_items_of(each.message) or 0, len(each.data)
            if each.key == first.key and num_items + items <= MAX_ITEMS and num_bytes + size <= MAX_BYTES:
                taken.append(each)
                num_items, num_bytes = num_items + items, num_bytes + size
            else:
                others.append(each)
        waiting.extendleft(reversed(others))
        return [each for each in taken if not each.response.done()]

    async def _call(self, model: str, state: _Model, together: Sequence[_Waiting]) -> None:
        try:
            observe_joined(len(together))
            if len(together) == 1 or not await self._joined_call(together):
                for each in together:
                    if not each.response.done():
                        await self._alone(each)
        finally:
            for each in together:
                if not each.response.done():
                    each.response.cancel()
            state.num_calls -= 1
            self._go_on(model, state)

    async def _joined_call(self, together: Sequence[_Waiting]) -> bool:
        """Answer several requests by one call; False if that failed, so that each has to be called alone."""
        messages = [each.message for each in together]
        seconds = min(each.ends_at for each in together) - monotonic()
        try:
            whole = joined(messages).SerializeToString()
            response = await self._triton.call("ModelInfer", whole, max(0.001, seconds))
            if not response.is_ok:
                return False
            parts = split(service_pb2.ModelInferResponse.FromString(response.body), messages)
        except (NotJoinable, ValueError, LookupError, TypeError, DecodeError) as exc:
            log.warning("requests are not joined: %s", exc)
            self._keep_apart(together[0].key)
            return False
        for each, part in zip(together, parts, strict=True):
            if not each.response.done():
                each.response.set_result(Response(response.status, "", part.SerializeToString()))
        return True

    def _keep_apart(self, key: bytes | None) -> None:
        if key is not None:
            self._apart[key] = None
            while len(self._apart) > MAX_APART:
                self._apart.popitem(last=False)

    async def _alone(self, waiting: _Waiting) -> None:
        seconds = max(0.001, waiting.ends_at - monotonic())
        response = await self._triton.call("ModelInfer", waiting.data, seconds)
        with suppress(asyncio.InvalidStateError):
            waiting.response.set_result(response)
