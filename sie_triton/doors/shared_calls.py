"""Calls that many requests share: those that wait for the same go together, once a call ends.

Up to `max_calls` calls of a line are made at once, each of one request. While they run, further requests gather, and
the next call takes those that want the same. No request waits for others to come, unless `gather_s` says for how long,
and none longer than `max_wait_s` for a call to end.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

Request = TypeVar("Request")
Answer = TypeVar("Answer")

# The least time of a call, in seconds.
MIN_S = 0.001

# A shared call may always have so many requests.
MIN_REQUESTS = 2

# Weight of the last call in the time of a request.
WEIGHT = 0.2


class Apart(Exception):
    """A shared call failed, perhaps because of one of its requests, so each has to be called alone."""


class Weight(NamedTuple):
    """Requests with equal keys share calls; one without a key is called alone."""

    key: Hashable | None
    num_items: int = 1
    num_bytes: int = 0


@dataclass(slots=True, eq=False)
class Waiting(Generic[Request, Answer]):
    """A request that waits. It no longer does once its answer is set or cancelled."""

    request: Request
    weight: Weight
    since: float
    ends_at: float
    context: Context = field(default_factory=copy_context)
    answer: "asyncio.Future[Answer]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(slots=True)
class Line(Generic[Request, Answer]):
    """The requests of one line, which wait for its calls to end."""

    num_calls: int = 0
    request_s: float = 0.0  # time of a call for each of its requests; 0 while unknown
    waiting: deque[Waiting[Request, Answer]] = field(default_factory=deque)
    gathering: asyncio.TimerHandle | None = None  # set while those that wait have time to become more
    overdue: asyncio.TimerHandle | None = None  # at the end of the wait of the first


class SharedCalls(ABC, Generic[Request, Answer]):
    """Belongs to one event loop. `max_calls`: calls of a line at a time; the other limits are those of one call.

    A shared call has as many requests as take `call_s` seconds, by the calls before, so that those of others do not
    wait long for it. The first request of a call waits for `gather_s` seconds, or until `max_requests` wait. `observe`
    gets the number of requests of each call that follows another. Beyond `max_waiting` requests of a line, further ones
    are called alone at once, so that the server may refuse them. A request that has waited for `max_wait_s`, such as
    for a model that loads, is called at once, however many calls there are, so that the server may answer why it has to
    wait.
    """

    def __init__(
        self,
        *,
        max_calls: int,
        max_requests: int,
        max_items: float = float("inf"),
        max_bytes: float = float("inf"),
        max_waiting: float = float("inf"),
        max_wait_s: float = float("inf"),
        call_s: Callable[[], float] = lambda: float("inf"),
        gather_s: Callable[[], float] = lambda: 0.0,
        observe: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._max_calls, self._max_requests = max_calls, max_requests
        self._max_items, self._max_bytes = max_items, max_bytes
        self._max_waiting, self._max_wait_s = max_waiting, max_wait_s
        self._call_s, self._gather_s, self._observe = call_s, gather_s, observe
        self._lines: dict[Hashable, Line[Request, Answer]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def weigh(self, request: Request) -> Weight:
        """Return the weight of a request that has to wait; by default all requests of a line share calls."""
        return Weight("")

    def is_apart(self, key: Hashable) -> bool:
        """Return True if requests with this key are called alone from now on."""
        return False

    @abstractmethod
    async def alone(self, request: Request, seconds: float) -> Answer:
        """Answer one request, in the context of its caller."""

    @abstractmethod
    async def together(self, requests: Sequence[Request], seconds: float) -> Sequence[Answer]:
        """Answer requests with equal keys by one call, in an empty context; raise Apart, or the error of them all."""

    @abstractmethod
    def late(self, seconds: float) -> Answer | Exception:
        """Return the answer, or the error, of a request whose timeout of `seconds` has passed."""

    def after(self, answer: Answer, waited_s: float) -> Answer:
        """Return the answer to a request that waited for `waited_s` seconds before its call."""
        return answer

    async def call(
        self,
        name: Hashable,
        request: Request,
        seconds: float,
        when_waiting: "Callable[[asyncio.Future[Answer]], object]" = lambda _: None,
    ) -> Answer:
        """Return the answer to a request of the line `name`, with a timeout of `seconds`.

        If it has to wait, `when_waiting` gets the future of its answer: who sets it takes the request out.
        """
        line = self._lines.setdefault(name, Line())
        gather_s = self._gather_s()
        if (line.num_calls >= self._max_calls or gather_s) and len(line.waiting) < self._max_waiting:
            now = monotonic()
            waiting: Waiting[Request, Answer] = Waiting(request, self.weigh(request), now, now + seconds)
            line.waiting.append(waiting)
            when_waiting(waiting.answer)
            self._watch(name, line)
            self._gather(name, line, min(gather_s, seconds / 2))
            deadline = asyncio.get_running_loop().call_later(seconds, self._end_late, waiting, seconds)
            try:
                return await waiting.answer
            finally:
                deadline.cancel()
        line.num_calls += 1
        began = monotonic()
        try:
            return await self.alone(request, seconds)
        finally:
            self._end(name, line, monotonic() - began)

    def _end_late(self, waiting: Waiting[Request, Answer], seconds: float) -> None:
        if isinstance(found := self.late(seconds), Exception):
            _fail(waiting, found)
        elif not waiting.answer.done():
            waiting.answer.set_result(found)

    def _gather(self, name: Hashable, line: Line[Request, Answer], gather_s: float) -> None:
        """Make the next call once enough requests wait, or the first one has waited for `gather_s` seconds."""
        if len(line.waiting) >= self._max_requests:
            self._gathered(name, line)
        elif len(line.waiting) == 1 and gather_s:
            line.gathering = asyncio.get_running_loop().call_later(gather_s, self._gathered, name, line)

    def _gathered(self, name: Hashable, line: Line[Request, Answer]) -> None:
        if line.gathering is not None:
            line.gathering.cancel()
            line.gathering = None
        self._go_on(name, line)

    def _end(self, name: Hashable, line: Line[Request, Answer], request_s: float) -> None:
        """Record the duration of a call per request, and make the next calls."""
        line.request_s = smoothed(line.request_s, request_s)
        line.num_calls -= 1
        self._go_on(name, line)

    def _go_on(self, name: Hashable, line: Line[Request, Answer]) -> None:
        """Make the next calls, if there are requests and calls left."""
        while line.waiting and line.gathering is None and self._may_call(line):
            if together := self._taken(line):
                line.num_calls += 1
                task = asyncio.create_task(self._call(name, line, together), context=Context())
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._watch(name, line)
        if not line.waiting and not line.num_calls:
            self._lines.pop(name, None)

    def _may_call(self, line: Line[Request, Answer]) -> bool:
        return line.num_calls < self._max_calls or line.waiting[0].since + self._max_wait_s <= monotonic()

    def _watch(self, name: Hashable, line: Line[Request, Answer]) -> None:
        """Make the next calls once the first waiting request has waited too long."""
        if line.overdue is not None:
            line.overdue.cancel()
            line.overdue = None
        if line.waiting and self._max_wait_s < float("inf"):
            left_s = line.waiting[0].since + self._max_wait_s - monotonic()
            line.overdue = asyncio.get_running_loop().call_later(left_s, self._go_on, name, line)

    def _taken(self, line: Line[Request, Answer]) -> list[Waiting[Request, Answer]]:
        """Take the first request and those behind it that can share its call."""
        waiting, limit = line.waiting, num_shared(self._call_s(), line.request_s, self._max_requests)
        first = waiting.popleft()
        taken, others = [first], deque[Waiting[Request, Answer]]()
        key, num_items, num_bytes = first.weight
        may_share = key is not None and not self.is_apart(key)
        while waiting and may_share and len(taken) < limit:
            each = waiting.popleft()
            its_key, items, size = each.weight
            if its_key == key and num_items + items <= self._max_items and num_bytes + size <= self._max_bytes:
                taken.append(each)
                num_items, num_bytes = num_items + items, num_bytes + size
            else:
                others.append(each)
        waiting.extendleft(reversed(others))
        return [each for each in taken if not each.answer.done()]

    async def _call(
        self, name: Hashable, line: Line[Request, Answer], together: Sequence[Waiting[Request, Answer]]
    ) -> None:
        began = monotonic()
        try:
            self._observe(len(together))
            if len(together) == 1 or not await self._shared(together):
                await asyncio.gather(*(self._alone(each) for each in together if not each.answer.done()))
        finally:
            for each in together:
                each.answer.cancel()
            self._end(name, line, (monotonic() - began) / len(together))

    async def _shared(self, together: Sequence[Waiting[Request, Answer]]) -> bool:
        """Answer several requests by one call; False if each has to be called alone."""
        now = monotonic()
        seconds = max(MIN_S, max(each.ends_at for each in together) - now)
        calling = self.together([each.request for each in together], seconds)
        try:
            answers = await while_awaited(calling, [each.answer for each in together])
        except Apart:
            return False
        except Exception as exc:
            for each in together:
                _fail(each, exc)
        else:
            for each, answer in zip(together, answers or (), strict=answers is not None):
                if not each.answer.done():
                    each.answer.set_result(self.after(answer, now - each.since))
        return True

    async def _alone(self, waiting: Waiting[Request, Answer]) -> None:
        """Answer a request by a separate call. Return early if it no longer waits."""
        now = monotonic()
        calling = self.alone(waiting.request, max(MIN_S, waiting.ends_at - now))
        try:
            answer = await while_awaited(calling, [waiting.answer], waiting.context)
        except Exception as exc:
            _fail(waiting, exc)
        else:
            if answer is not None and not waiting.answer.done():
                waiting.answer.set_result(self.after(answer, now - waiting.since))


def _fail(waiting: Waiting[Any, Any], error: Exception) -> None:
    if not waiting.answer.done():
        waiting.answer.set_exception(error)


async def while_awaited(
    calling: Coroutine[Any, Any, Answer], answers: "Sequence[asyncio.Future[Any]]", context: Context | None = None
) -> Answer | None:
    """Return the result of `calling`; cancel it and return None once none of the futures is awaited."""
    task = asyncio.create_task(calling, context=context)
    left: asyncio.Future[Any] = asyncio.gather(*answers, return_exceptions=True)
    try:
        both: set[asyncio.Future[Any]] = {task, left}
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        task.cancel()


def num_shared(call_s: float, request_s: float, max_requests: int) -> int:
    """Return how many requests a call may have: as many as take `call_s` seconds.

    `request_s` is the time of a call for each of its requests, 0 while it is unknown.

    >>> num_shared(0.1, 0.01, 64), num_shared(0.1, 0.5, 64), num_shared(0.1, 0.0, 64)
    (10, 2, 64)
    """
    if not request_s:
        return max_requests
    return max(min(MIN_REQUESTS, max_requests), min(max_requests, int(min(call_s / request_s, max_requests))))


def smoothed(request_s: float, latest_s: float) -> float:
    """Return the time of a call for each of its requests, in seconds, from that before and that of the latest call.

    >>> smoothed(0.0, 0.3), round(smoothed(0.1, 0.2), 3)
    (0.3, 0.12)
    """
    return (1 - WEIGHT) * request_s + WEIGHT * latest_s if request_s else latest_s
