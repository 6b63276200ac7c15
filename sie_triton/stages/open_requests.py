"""Deferred requests. Each is answered once: by the stage, or by the clock at its deadline."""

import heapq
import logging
from collections import Counter
from collections.abc import Callable
from threading import Condition, Thread
from time import monotonic, monotonic_ns

from sie_triton.errors import BusyError, Cancelled, DeadlinePassed, ModelLoading, SIEError
from sie_triton.records.calls import Call
from sie_triton.scheduling.job import NEVER
from sie_triton.scheduling.lasting import started
from sie_triton.stages.request import Outputs, Request

log = logging.getLogger(__name__)

GONE = "cancelled by the client"

# Polling interval of the calls of deferred requests, in seconds.
POLL_S = 0.5

# Polling interval of `overdue()`, in seconds.
LOOK_S = 2.0

# Minimum number of deadlines before those of answered requests are dropped.
MIN_DEADLINES = 64


def expired(loading: str | None = None) -> BusyError:
    """Return the error of a request whose deadline has passed. `loading`: the progress of loading; None: loaded."""
    if loading is None:
        return DeadlinePassed(
            "timeout: passed before the answer was ready; allow more time, or retry when there is less load"
        )
    doing = f": {loading}" if loading else ""
    return ModelLoading(f"timeout: passed while the model is being loaded{doing}; retry later, or allow more time")


class OpenRequests:
    """The deferred requests of one stage, and a clock thread that answers those whose deadline passes.

    Each request is answered once, by the first of two: a thread of the stage through `reply`, or the clock. Any thread
    may call any method. `answered(is_expired)` is called after each response, on the thread that sent it. If Triton
    rejects a response, this is logged, not raised, and `fault()` is called too. `loading()` returns the progress of
    loading, for the error of expired requests. `call_of(token)` returns a request's call at the door, which is held
    while a request of it is deferred; every POLL_S the clock checks if its client has disconnected. `gone()` is called
    for each such request. The clock calls
    `overdue()` every LOOK_S while requests are open; if it returns an error, all of them get that error.
    `failed(request, error)` is called before each response that is an error, on the thread that sends it.
    """

    def __init__(
        self,
        answered: Callable[[bool], None],
        fault: Callable[[], None],
        loading: Callable[[], str | None] = lambda: None,
        call_of: Callable[[str], Call | None] = lambda token: None,
        gone: Callable[[], None] = lambda: None,
        overdue: Callable[[], SIEError | None] = lambda: None,
        failed: Callable[[Request, SIEError], None] = lambda request, error: None,
    ) -> None:
        self._answered = answered
        self._fault = fault
        self._loading = loading
        self._call_of = call_of
        self._gone = gone
        self._overdue = overdue
        self._failed = failed
        self._look_at = 0.0
        self._changed = Condition()
        self._open: dict[int, Request] = {}
        self._keys: dict[Request, int] = {}
        self._calls: dict[int, tuple[Request, Call]] = {}
        self._held: Counter[Call] = Counter()
        self._deadlines: list[tuple[int, int]] = []
        self._polled_ns = 0
        self._wakes_ns = NEVER
        self._num_added = 0
        self._clock: Thread | None = None
        self._closed = False

    def __contains__(self, request: Request) -> bool:
        return request in self._keys

    def add(self, request: Request, deadline: int, token: str = "") -> None:
        """Defer `request`; `token` names its call at the door. A request that was already added stays as it is.

        Raise BusyError, and do not defer it, if the system starts no thread for the clock.
        """
        with self._changed:
            if request in self._keys:
                return
            if self._clock is None:
                self._clock = started(self._run_clock, "deadlines", self._fault)
            request.defer()
            key = self._num_added
            self._num_added += 1
            self._open[key], self._keys[request] = request, key
            if call := self._call_of(token):
                self._calls[key] = request, call
                self._hold(call)
            if deadline < NEVER:
                heapq.heappush(self._deadlines, (deadline, key))
            if self._next_ns() < self._wakes_ns:
                self._changed.notify()

    def is_over(self, request: Request, *, asks_triton: bool = True) -> bool:
        """True if the client no longer waits for a deferred `request`, so that its work must end.

        True once the request was answered, at its deadline for example, if its call at the door is over, or if Triton
        reports that its client has cancelled it. In the latter two cases this method answers it with Cancelled. Asking
        Triton takes a round trip: frequent callers skip it with `asks_triton` False.
        """
        if self._is_gone(request, asks_triton):
            self._cancel(request)
        return request not in self._keys

    def reply(self, request: Request, answer: Outputs | SIEError) -> bool:
        """Answer a request; False if it was answered before."""
        return self._reply(request, answer, is_expired=False)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._clock is not None:
            self._clock.join()

    def _is_gone(self, request: Request, asks_triton: bool) -> bool:
        """True if the client has cancelled or disconnected. Holds the lock: Triton crashes if asked during `reply`."""
        with self._changed:
            key = self._keys.get(request)
            if key is None:
                return False
            call = self._calls.get(key)
            return (call is not None and call[1].is_over()) or (asks_triton and request.is_cancelled())

    def _reply(self, request: Request, answer: Outputs | SIEError, *, is_expired: bool) -> bool:
        with self._changed:
            key = self._keys.pop(request, None)
            if key is None:
                return False
            del self._open[key]
            if held := self._calls.pop(key, None):
                self._release(held[1])
            self._forget_answered()
        if isinstance(answer, SIEError):
            self._failed(request, answer)
        try:
            request.reply(answer)
        except Exception:
            log.exception("Triton rejected a response; the client gets none")
            self._fault()
        self._answered(is_expired)
        return True

    def _hold(self, call: Call) -> None:
        if not self._held[call]:
            call.hold()
        self._held[call] += 1

    def _release(self, call: Call) -> None:
        self._held[call] -= 1
        if not self._held[call]:
            del self._held[call]
            call.release()

    def _cancel(self, request: Request) -> None:
        if self.reply(request, Cancelled(GONE)):
            self._gone()

    def _forget_answered(self) -> None:
        """Drop the deadlines of answered requests once they outnumber the open ones; amortised constant time."""
        if len(self._deadlines) > MIN_DEADLINES + 2 * len(self._open):
            self._deadlines = [each for each in self._deadlines if each[1] in self._open]
            heapq.heapify(self._deadlines)

    def _run_clock(self) -> None:
        while not self._closed:
            for key in self._wait_for_expired():
                if (request := self._open.get(key)) is not None:
                    self._reply(request, expired(self._loading()), is_expired=True)
            for request in self._revoked():
                self._cancel(request)
            if monotonic() >= self._look_at:
                self._look_at = monotonic() + LOOK_S
                self._end_overdue()

    def _end_overdue(self) -> None:
        if (error := self._overdue()) is not None:
            with self._changed:
                requests = [*self._keys]
            for request in requests:
                self._reply(request, error, is_expired=True)

    def _wait_for_expired(self) -> list[int]:
        """Return the keys whose deadline has passed; none when it is time to poll the calls, and after `close`."""
        with self._changed:
            while not self._closed:
                now, following = monotonic_ns(), self._next_ns()
                if following > now:
                    self._sleep_until(following, now)
                elif self._deadlines and self._deadlines[0][0] <= now:
                    return [heapq.heappop(self._deadlines)[1]]
                else:
                    self._polled_ns = now
                    return []
            return []

    def _next_ns(self) -> int:
        """Return the time of the next deadline or poll; NEVER if there is none."""
        poll = self._polled_ns + round((POLL_S if self._calls else LOOK_S) * 1e9) if self._open else NEVER
        return min(self._deadlines[0][0], poll) if self._deadlines else poll

    def _sleep_until(self, at_ns: int, now_ns: int) -> None:
        """Sleep, or return earlier if `add` or `close` notifies. `add` does so only if it needs the clock earlier."""
        self._wakes_ns = at_ns
        self._changed.wait(min((at_ns - now_ns) / 1e9, 3600.0))
        self._wakes_ns = 0

    def _revoked(self) -> list[Request]:
        with self._changed:
            return [request for request, call in self._calls.values() if call.is_over()]
