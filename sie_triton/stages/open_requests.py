"""Deferred requests, each answered once: by the stage, or at its deadline by the clock."""

import heapq
import logging
from collections.abc import Callable
from threading import Condition, Thread
from time import monotonic_ns

from sie_triton.errors import BusyError, SIEError
from sie_triton.scheduling.job import NEVER
from sie_triton.scheduling.lasting import lasting
from sie_triton.stages.request import Outputs, Request

log = logging.getLogger(__name__)


def expired(loading: str | None = None) -> BusyError:
    """`loading`: what the model's loading is at, None where it is loaded."""
    if loading is None:
        return BusyError(
            "timeout: passed before the answer was ready; allow more time, or retry when there is less load"
        )
    doing = f": {loading}" if loading else ""
    return BusyError(f"timeout: passed while the model is being loaded{doing}; retry later, or allow more time")


class OpenRequests:
    """The deferred requests of one stage, and a clock thread that answers those whose deadline passes.

    Each request is answered once, by whoever comes first: a thread of the stage through `reply`, or the clock. Any
    thread may call any method. `answered(is_expired)` is called after each answer, on the thread that sent it; after
    an answer that Triton did not take, which is logged and not raised, `fault()` is called too. `loading()` is what
    `expired` says of requests that wait for the model.
    """

    def __init__(
        self,
        answered: Callable[[bool], None],
        fault: Callable[[], None],
        loading: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._answered = answered
        self._fault = fault
        self._loading = loading
        self._changed = Condition()
        self._open: dict[int, Request] = {}
        self._keys: dict[Request, int] = {}
        self._deadlines: list[tuple[int, int]] = []
        self._num_added = 0
        self._clock: Thread | None = None
        self._closed = False

    def __contains__(self, request: Request) -> bool:
        return request in self._keys

    def add(self, request: Request, deadline: int) -> None:
        """Defer `request`; one that is here already stays as it is."""
        with self._changed:
            if request in self._keys:
                return
            request.defer()
            key = self._num_added
            self._num_added += 1
            self._open[key], self._keys[request] = request, key
            if deadline < NEVER:
                heapq.heappush(self._deadlines, (deadline, key))
                self._start_clock()
                self._changed.notify()

    def is_cancelled(self, request: Request) -> bool:
        """False once it was answered. Triton must not be asked about a request that is being answered: it crashes."""
        with self._changed:
            return request in self._keys and request.is_cancelled()

    def reply(self, request: Request, answer: Outputs | SIEError) -> bool:
        """False if it was answered before."""
        return self._reply(request, answer, is_expired=False)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._clock is not None:
            self._clock.join()

    def _reply(self, request: Request, answer: Outputs | SIEError, *, is_expired: bool) -> bool:
        with self._changed:
            key = self._keys.pop(request, None)
            if key is None:
                return False
            del self._open[key]
        try:
            request.reply(answer)
        except Exception:
            log.exception("Triton did not take an answer; its client gets none")
            self._fault()
        self._answered(is_expired)
        return True

    def _start_clock(self) -> None:
        if self._clock is None:
            self._clock = lasting(self._run_clock, "deadlines", self._fault)
            self._clock.start()

    def _run_clock(self) -> None:
        while (key := self._next_expired()) is not None:
            if (request := self._open.get(key)) is not None:
                self._reply(request, expired(self._loading()), is_expired=True)

    def _next_expired(self) -> int | None:
        with self._changed:
            while not self._closed:
                wait_ns = self._deadlines[0][0] - monotonic_ns() if self._deadlines else NEVER
                if wait_ns <= 0:
                    return heapq.heappop(self._deadlines)[1]
                self._changed.wait(min(wait_ns / 1e9, 3600))
            return None
