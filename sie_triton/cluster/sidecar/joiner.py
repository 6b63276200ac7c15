"""Calls Triton for many requests at a time: those of a tenant that wait for a model go together, once a call ends.

Up to `max_calls` calls are made at once. While they run, further requests gather, and the next call takes those that
want the same. No request waits for others to come, unless `gather_s` says for how long. Each tenant has calls of its
own, so that Triton, which lets small requests pass, sees those of all tenants.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from google.protobuf.message import DecodeError
from grpc import StatusCode
from tritonclient.grpc import service_pb2

from sie_triton.cluster.messages import with_parameters
from sie_triton.cluster.policies.calls import num_joined, smoothed
from sie_triton.cluster.sidecar.joining import MAX_ITEMS, NotJoinable, joined, key_of, num_items_of, split
from sie_triton.cluster.sidecar.metrics import observe_joined
from sie_triton.cluster.sidecar.triton import LocalTriton, Response, is_away
from sie_triton.records.calls import CallLost, OpenCall, unless_lost

log = logging.getLogger(__name__)

# A model and a tenant.
Line = tuple[str, str]

# Size of a joined request, at most. A larger request is called alone, and not parsed.
MAX_BYTES = 256 * 1024

# A request with less time, in seconds, has passed its deadline while it waited.
MIN_S = 0.001
LATE = Response(StatusCode.DEADLINE_EXCEEDED.value[0], "Deadline Exceeded", b"")

# Kinds of request that could not be split: the latest of them are kept.
MAX_APART = 1000

# In place of a message that is joined with no other: what it contains may take many times its bytes.
EMPTY = service_pb2.ModelInferRequest()


@dataclass(slots=True)
class _Waiting:
    key: bytes | None
    message: Any
    data: bytes
    ends_at: float
    since: float = field(default_factory=monotonic)
    response: asyncio.Future[Response] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


def _joinable(request: bytes) -> tuple[bytes | None, Any]:
    """Return a request's key and its message; None and an empty message if it is called alone.

    Bytes that are no request are called alone, too, and Triton refuses them.
    """
    if len(request) > MAX_BYTES:
        return None, EMPTY
    try:
        message = service_pb2.ModelInferRequest.FromString(request)
    except DecodeError:
        return None, EMPTY
    key = key_of(message)
    return key, EMPTY if key is None else message


@dataclass(slots=True)
class _Line:
    num_calls: int = 0
    request_s: float = 0.0  # time of a call for each of its requests; 0 while unknown
    waiting: deque[_Waiting] = field(default_factory=deque)
    gathering: asyncio.TimerHandle | None = None  # set while those that wait have time to become more


class Joiner:
    """Belongs to one event loop. `max_calls`: calls of a line at a time; `max_requests`: requests of one call.

    `open_call` returns a new call for each joined request.

    A joined call has as many requests as take `call_s` seconds, by the calls before, so that those of others do not
    wait long for it. The first request of a call waits for `gather_s` seconds, or until `max_requests` wait.
    """

    def __init__(
        self,
        triton: LocalTriton,
        open_call: Callable[[], OpenCall],
        max_calls: int,
        max_requests: int,
        call_s: Callable[[], float] = lambda: float("inf"),
        gather_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._triton, self._open_call = triton, open_call
        self._call_s, self._gather_s = call_s, gather_s
        self._max_calls, self._max_requests = max_calls, max_requests
        self._lines: dict[Line, _Line] = {}
        self._apart: OrderedDict[bytes, None] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def call(
        self,
        line: Line,
        request: bytes,
        seconds: float,
        when_waiting: Callable[[asyncio.Future[Response]], None] = lambda _: None,
    ) -> Response:
        """Return Triton's response to a ModelInferRequest, which has so many seconds.

        If it has to wait, `when_waiting` gets the future of its response: who sets it takes the request out.
        """
        state = self._lines.setdefault(line, _Line())
        gather_s = self._gather_s()
        if state.num_calls >= self._max_calls or gather_s:
            waiting = _Waiting(*_joinable(request), request, monotonic() + seconds)
            state.waiting.append(waiting)
            when_waiting(waiting.response)
            self._gather(line, state, min(gather_s, seconds / 2))
            return await waiting.response
        state.num_calls += 1
        began = monotonic()
        try:
            return await self._triton.call("ModelInfer", request, seconds)
        finally:
            self._end(line, state, monotonic() - began)

    def _gather(self, line: Line, state: _Line, gather_s: float) -> None:
        """Make the next call once enough requests wait, or the first one has waited for so long."""
        if len(state.waiting) >= self._max_requests:
            self._gathered(line, state)
        elif len(state.waiting) == 1 and gather_s:
            state.gathering = asyncio.get_running_loop().call_later(gather_s, self._gathered, line, state)

    def _gathered(self, line: Line, state: _Line) -> None:
        if state.gathering is not None:
            state.gathering.cancel()
            state.gathering = None
        self._go_on(line, state)

    def _end(self, line: Line, state: _Line, request_s: float) -> None:
        """Take the time of a call for each of its requests, and go on."""
        state.request_s = smoothed(state.request_s, request_s)
        state.num_calls -= 1
        self._go_on(line, state)

    def _go_on(self, line: Line, state: _Line) -> None:
        """Make the next calls, if there are requests and calls left."""
        while state.waiting and state.gathering is None and state.num_calls < self._max_calls:
            together = self._taken(state)
            if together:
                state.num_calls += 1
                task = asyncio.create_task(self._call(line, state, together))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if not state.waiting and not state.num_calls:
            self._lines.pop(line, None)

    def _taken(self, state: _Line) -> list[_Waiting]:
        """Take the first request and those behind it that can be joined with it."""
        waiting, limit = state.waiting, num_joined(self._call_s(), state.request_s, self._max_requests)
        first = waiting.popleft()
        taken, others = [first], deque[_Waiting]()
        num_items, num_bytes = num_items_of(first.message) or 0, len(first.data)
        can_be_joined = first.key is not None and first.key not in self._apart
        while waiting and can_be_joined and len(taken) < min(limit, self._max_requests):
            each = waiting.popleft()
            items, size = num_items_of(each.message) or 0, len(each.data)
            if each.key == first.key and num_items + items <= MAX_ITEMS and num_bytes + size <= MAX_BYTES:
                taken.append(each)
                num_items, num_bytes = num_items + items, num_bytes + size
            else:
                others.append(each)
        waiting.extendleft(reversed(others))
        now = monotonic()
        late = [each for each in taken if each.ends_at - now < MIN_S and not each.response.done()]
        for each in late:
            each.response.set_result(LATE)
        return [each for each in taken if not each.response.done()]

    async def _call(self, line: Line, state: _Line, together: Sequence[_Waiting]) -> None:
        try:
            observe_joined(len(together))
            began = monotonic()
            if len(together) == 1 or not await self._joined_call(together):
                for each in together:
                    if not each.response.done():
                        await self._alone(each)
        finally:
            for each in together:
                if not each.response.done():
                    each.response.cancel()
            self._end(line, state, (monotonic() - began) / max(1, len(together)))

    async def _joined_call(self, together: Sequence[_Waiting]) -> bool:
        """Answer several requests by one call; False if that failed, so that each has to be called alone."""
        messages = [each.message for each in together]
        now = monotonic()
        seconds = min(each.ends_at for each in together) - now
        try:
            whole, call = joined(messages).SerializeToString(), self._open_call()
            with call as token:
                async with unless_lost(call):
                    request = with_parameters(whole, token)
                    response = await self._triton.call("ModelInfer", request, max(0.001, seconds))
            if is_away(response):  # each of them may be what ended Triton: none is called again here
                for each in together:
                    if not each.response.done():
                        each.response.set_result(response)
                return True
            if not response.is_ok:
                return False
            parts = split(service_pb2.ModelInferResponse.FromString(response.body), messages)
        except CallLost:
            return False
        except (NotJoinable, ValueError, LookupError, TypeError, DecodeError) as exc:
            log.warning("requests are not joined: %s", exc)
            self._keep_apart(together[0].key)
            return False
        for each, part in zip(together, parts, strict=True):
            if not each.response.done():
                each.response.set_result(Response(response.status, "", part.SerializeToString(), now - each.since))
        return True

    def _keep_apart(self, key: bytes | None) -> None:
        if key is not None:
            self._apart[key] = None
            while len(self._apart) > MAX_APART:
                self._apart.popitem(last=False)

    async def _alone(self, waiting: _Waiting) -> None:
        """Answer a request by a call of its own. Return early if it no longer waits."""
        now = monotonic()
        call = self._triton.call("ModelInfer", waiting.data, max(0.001, waiting.ends_at - now))
        calling = asyncio.create_task(call)
        try:
            both: set[asyncio.Future[Response]] = {calling, waiting.response}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            calling.cancel()
        if not waiting.response.done():
            waiting.response.set_result(replace(calling.result(), waited_s=now - waiting.since))
