"""The requests of a stage. Each is answered once: by the stage, or, if it is deferred, by the clock at its deadline."""

import heapq
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread
from time import monotonic, monotonic_ns

from sie_triton.errors import BusyError, Cancelled, DeadlinePassed, InputError, ModelLoading, SIEError
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.scheduling.job import NEVER
from sie_triton.pipeline.scheduling.threads import started
from sie_triton.pipeline.stages.request import DEFERRED, Answer, Outputs, Request
from sie_triton.records.calls import Call, Calls
from sie_triton.records.status import StatusWriter

log = logging.getLogger(__name__)

GONE = "cancelled by the client"


def expired(loading: str | None = None) -> BusyError:
    """Return the error of a request whose deadline has passed. `loading`: the progress of loading; None: loaded."""
    if loading is None:
        return DeadlinePassed(
            "timeout: passed before the answer was ready; allow more time, or retry when there is less load"
        )
    doing = f": {loading}" if loading else ""
    return ModelLoading(f"timeout: passed while the model is being loaded{doing}; retry later, or allow more time")


class OpenRequest:
    """A request in a stage, which `answer` answers once: as what `execute` returns, or, once it is deferred, at once.

    `returned` is what `execute` returns for it; None until that is known. Until it is deferred, the thread in `execute`
    calls the methods; then any thread may.
    """

    __slots__ = ("_requests", "call", "is_deferred", "is_open", "key", "request", "returned")

    def __init__(self, request: Request, requests: "OpenRequests") -> None:
        self.request, self._requests = request, requests
        self.returned: Answer | None = None
        self.is_open, self.is_deferred = True, False
        self.key = 0
        self.call: Call | None = None

    def defer(self, deadline_ns: int, token: str = "") -> None:
        """Let it be answered after `execute`; `token` names its call at the door.

        Has no effect on a request that is deferred or answered. Raise BusyError, and do not defer it, if the system
        starts no thread for the clock.
        """
        if self.is_open and not self.is_deferred:
            self._requests.defer(self, deadline_ns, token)

    def answer(self, answer: Outputs | SIEError) -> bool:
        """Answer it; False if it was answered before."""
        if self.is_deferred:
            return self._requests.answer(self, answer)
        is_first, self.is_open = self.is_open, False
        if is_first:
            if isinstance(answer, SIEError):
                self._requests.failed(self.request, answer)
            self.returned = answer
        return is_first

    def end_if_unwanted(self, *, asks_triton: bool = True) -> bool:
        """True if no client waits for it any more, so that its work must end.

        It was answered, at its deadline for example, its call at the door is over, or Triton reports that its client
        has cancelled it. In the latter two cases this method answers it with Cancelled. Asking Triton takes a round
        trip: frequent callers skip it with `asks_triton` False.
        """
        if self.is_open and self.is_deferred:
            self._requests.look_at(self, asks_triton)
        return not self.is_open


class OpenRequests:
    """The requests of one stage, and a clock thread that answers deferred ones whose deadline passes.

    Any thread may call any method. `loading` is the progress of loading, for the error of expired requests; None:
    loaded. If Triton rejects a response, this is logged and counted as a fault, not raised. While a request of a door's
    call is deferred, the call is held; every `call_poll_s` the clock checks if its client has disconnected. Every
    `successor_poll_s` it checks if this process has to end; then all requests get an error. `failed(request, error)` is
    called before each response that is an error, on the thread that sends it.
    """

    def __init__(
        self,
        status: StatusWriter,
        calls: Calls,
        failed: Callable[[Request, SIEError], None],
        limits: StageLimits = StageLimits(),
    ) -> None:
        self.loading: str | None = None
        self._status, self._find, self.failed, self._limits = status, calls.find, failed, limits
        self._awaited_since: float | None = None
        self._look_at = 0.0
        self._changed = Condition()
        self._deferred: dict[int, OpenRequest] = {}
        self._held: Counter[Call] = Counter()
        self._deadlines: list[tuple[int, int]] = []
        self._polled_ns = 0
        self._wakes_ns = NEVER
        self._num_added = 0
        self._clock: Thread | None = None
        self._closed = False

    def defer(self, request: OpenRequest, deadline_ns: int, token: str) -> None:
        with self._changed:
            if self._clock is None:
                self._clock = started(self._run_clock, "deadlines", self._fault)
            request.request.defer()
            request.returned, request.is_deferred = DEFERRED, True
            self._num_added += 1
            request.key = self._num_added
            self._deferred[request.key] = request
            with suppress(InputError):  # a malformed token, which `check_call` reports
                request.call = self._find(token)
            if request.call:
                self._hold(request.call)
            if deadline_ns < NEVER:
                heapq.heappush(self._deadlines, (deadline_ns, request.key))
            if self._next_ns() < self._wakes_ns:
                self._changed.notify()

    def answer(self, request: OpenRequest, answer: Outputs | SIEError, *, is_expired: bool = False) -> bool:
        """Answer a deferred request; False if it was answered before."""
        with self._changed:
            if not request.is_open:
                return False
            request.is_open = False
            del self._deferred[request.key]
            self._forget_answered()
            if request.call:
                self._release(request.call)
        if isinstance(answer, SIEError):
            self.failed(request.request, answer)
        self._send(request.request, answer)
        self._status.add(num_open=-1, num_expired=int(is_expired))
        return True

    def look_at(self, request: OpenRequest, asks_triton: bool) -> None:
        """Cancel a request if its client has disconnected. Holds the lock: Triton crashes if asked during `reply`."""
        with self._changed:
            if not request.is_open:
                return
            has_left = request.call is not None and request.call.is_revoked()
            has_left = has_left or (asks_triton and request.request.is_cancelled())
        if has_left:
            self._cancel(request)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._clock is not None:
            self._clock.join()

    def _send(self, request: Request, answer: Outputs | SIEError) -> None:
        try:
            request.reply(answer)
        except Exception:
            log.exception("Triton rejected a response; the client gets none")
            self._fault()

    def _fault(self) -> None:
        self._status.add(num_faults=1)

    def _hold(self, call: Call) -> None:
        if not self._held[call]:
            call.hold()
        self._held[call] += 1

    def _release(self, call: Call) -> None:
        self._held[call] -= 1
        if not self._held[call]:
            del self._held[call]
            call.release()

    def _cancel(self, request: OpenRequest) -> None:
        if self.answer(request, Cancelled(GONE)):
            self._status.add(num_cancelled=1)

    def _forget_answered(self) -> None:
        """Drop the deadlines of answered requests once they outnumber the open ones; amortised constant time."""
        if len(self._deadlines) > 64 + 2 * len(self._deferred):
            self._deadlines = [each for each in self._deadlines if each[1] in self._deferred]
            heapq.heapify(self._deadlines)

    def _run_clock(self) -> None:
        while not self._closed:
            for key in self._wait_for_expired():
                if (request := self._deferred.get(key)) is not None:
                    self.answer(request, expired(self.loading), is_expired=True)
            for request in self._revoked():
                self._cancel(request)
            if monotonic() >= self._look_at:
                self._look_at = monotonic() + self._limits.successor_poll_s
                self._end_overdue()

    def _end_overdue(self) -> None:
        """Fail all requests once another process has waited for this one's memory for `drain_timeout_s` on end."""
        if not self._status.is_awaited():
            self._awaited_since = None
            return
        now, timeout_s = monotonic(), self._limits.drain_timeout_s
        self._awaited_since = now if self._awaited_since is None else self._awaited_since
        if now - self._awaited_since < timeout_s:
            return
        problem = f"the model was changed or evicted, and this request was not done within {timeout_s:g} s; retry"
        with self._changed:
            requests = [*self._deferred.values()]
        for request in requests:
            self.answer(request, BusyError(problem), is_expired=True)

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
        poll_s = self._limits.call_poll_s if self._held else self._limits.successor_poll_s
        poll = self._polled_ns + round(poll_s * 1e9) if self._deferred else NEVER
        return min(self._deadlines[0][0], poll) if self._deadlines else poll

    def _sleep_until(self, at_ns: int, now_ns: int) -> None:
        """Sleep, or return earlier if notified. `defer` notifies only if it needs the clock earlier."""
        self._wakes_ns = at_ns
        self._changed.wait(min((at_ns - now_ns) / 1e9, 3600.0))
        self._wakes_ns = 0

    def _revoked(self) -> list[OpenRequest]:
        with self._changed:
            return [each for each in self._deferred.values() if each.call is not None and each.call.is_revoked()]
