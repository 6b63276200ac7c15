"""Deferred requests are answered once, by the stage or at their deadline; the tests have their own clock."""

import threading
from collections.abc import Iterator

import pytest

from sie_triton.errors import BusyError, Cancelled, InputError
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.stages import open_requests as module
from sie_triton.pipeline.stages.open_requests import NEVER, OpenRequest, OpenRequests
from tests.support.stages import Counts, FakeRequest, open_requests
from tests.support.threads import no_thread

MS = 1_000_000


class Clock:
    """`now` in ns. The thread that answers at deadlines sleeps until then, by this clock, or until it is woken."""

    def __init__(self) -> None:
        self.now = 10**12
        self.is_waited_for = threading.Event()
        self._changed: threading.Condition | None = None
        self._until = 0

    def condition(self) -> threading.Condition:
        """Return a replacement for threading.Condition; a test makes only one."""
        clock = self

        class Waiting(threading.Condition):
            def wait(self, timeout=None):
                clock._until = clock.now + round(timeout * 1e9)
                clock.is_waited_for.set()
                super().wait()
                return clock.now < clock._until  # like Condition: False after a timeout

        self._changed = Waiting()
        return self._changed

    def advance(self, ns: int) -> None:
        with self._changed:
            self.now += ns
            if self._until <= self.now:
                self._changed.notify_all()


class Request(FakeRequest):
    """Records when it was answered."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self.answered_ns = 0

    def reply(self, answer):
        self.answered_ns = self._clock.now
        super().reply(answer)


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "Condition", made.condition)
    monkeypatch.setattr(module, "monotonic_ns", lambda: made.now)
    return made


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def requests(clock, counts) -> Iterator[OpenRequests]:
    made = open_requests(counts)
    yield made
    made.close()


def deferred(requests: OpenRequests, request: Request, deadline_ns: int, token: str = "") -> OpenRequest:
    made = OpenRequest(request, requests)
    made.defer(deadline_ns, token)
    return made


def test_only_the_first_answer_of_a_request_is_sent(requests, clock, counts):
    request, other = Request(clock), Request(clock)
    first, second = (deferred(requests, each, clock.now + 20 * MS) for each in (request, other))
    assert first.answer({"x": 1})
    assert not first.answer({"x": 2})
    clock.advance(20 * MS)
    assert other.answered.wait(10)
    assert not second.answer({"x": 3})
    requests.close()
    assert request.answers == [{"x": 1}]
    assert isinstance(other.answers[0], BusyError)
    assert (counts.total("num_open"), counts.total("num_expired")) == (-2, 1)


def test_the_first_answer_of_a_request_that_is_not_deferred_is_kept_for_execute(requests, clock, counts):
    request = OpenRequest(Request(clock), requests)
    assert request.is_open
    assert request.returned is None
    assert request.answer({"x": 1})
    assert not request.answer({"x": 2})
    assert (request.returned, request.is_open, request.is_deferred) == ({"x": 1}, False, False)
    request.defer(NEVER)
    assert request.end_if_unwanted()
    assert not request.request.is_deferred
    assert not request.request.answers
    assert counts.added == []


def test_deadlines_come_in_order_whatever_the_order_of_arrival(requests, clock):
    started = clock.now
    late, soon, never, middle = (Request(clock) for _ in range(4))
    for request, left in ((late, 60 * MS), (soon, 20 * MS), (middle, 40 * MS)):
        deferred(requests, request, started + left)
    without_deadline = deferred(requests, never, NEVER)
    for request in (soon, middle, late):
        clock.advance(20 * MS)
        assert request.answered.wait(10)
    assert [each.answered_ns - started for each in (soon, middle, late)] == [20 * MS, 40 * MS, 60 * MS]
    assert without_deadline.is_open
    assert not never.answers


def test_an_earlier_deadline_added_later_is_kept(requests, clock):
    deferred(requests, Request(clock), clock.now + 60_000 * MS)
    assert clock.is_waited_for.wait(10)
    soon = Request(clock)
    deferred(requests, soon, clock.now + 20 * MS)
    clock.advance(20 * MS)
    assert soon.answered.wait(10)


def test_a_request_deferred_again_keeps_its_deadline(requests, clock, counts):
    twice, once = Request(clock), Request(clock)
    deferred(requests, twice, clock.now + 40 * MS).defer(clock.now + 20 * MS)
    deferred(requests, once, clock.now + 20 * MS)
    clock.advance(20 * MS)
    assert once.answered.wait(10)
    assert not twice.answers
    clock.advance(20 * MS)
    assert twice.answered.wait(10)
    requests.close()
    assert counts.total("num_expired") == 2


def test_triton_is_not_asked_about_a_request_that_was_answered(requests, clock):
    """It would crash; the double says so."""
    request = deferred(requests, Request(clock), NEVER)
    assert not request.end_if_unwanted()
    request.answer({"x": 1})
    assert request.end_if_unwanted()


def test_triton_is_not_asked_about_a_request_that_is_not_deferred(requests, clock):
    request = OpenRequest(Request(clock), requests)
    request.request.cancelled = True
    assert not request.end_if_unwanted()


def test_a_cancelled_request_is_over_and_answered(requests, clock):
    request = Request(clock)
    found = deferred(requests, request, NEVER)
    request.cancelled = True
    assert not found.end_if_unwanted(asks_triton=False)
    assert found.end_if_unwanted()
    assert isinstance(request.answers[0], Cancelled)


class Gone:
    """A call at the door. `is_gone`: its client has disconnected; `is_held`: the door knows that it is deferred."""

    is_gone = is_held = False

    def is_revoked(self):
        return self.is_gone

    def hold(self):
        self.is_held = True

    def release(self):
        self.is_held = False


def test_a_request_whose_client_has_gone_is_over_and_answered(clock, counts):
    calls = {"request": Gone(), "other": Gone()}
    requests, request = open_requests(counts, calls), Request(clock)
    gone = deferred(requests, request, NEVER, "request")
    others = [deferred(requests, Request(clock), NEVER, token) for token in ("other", "")]
    calls["request"].is_gone = True
    assert gone.end_if_unwanted(asks_triton=False)
    assert isinstance(request.answers[0], Cancelled)
    assert [each.end_if_unwanted(asks_triton=False) for each in others] == [False, False]
    assert counts.total("num_cancelled") == 1
    requests.close()


def test_disconnected_clients_are_found_by_polling(clock):
    call = Gone()
    requests, request = open_requests(calls={"": call}), Request(clock)
    deferred(requests, request, NEVER)
    assert clock.is_waited_for.wait(30)
    assert clock._until == clock.now + StageLimits.call_poll_s * 1e9
    call.is_gone = True
    clock.advance(round(StageLimits.call_poll_s * 1e9))
    assert request.answered.wait(30)
    assert isinstance(request.answers[0], Cancelled)
    requests.close()


def test_a_malformed_token_is_none(requests, clock, monkeypatch):
    def refuse(token):
        raise InputError.at("parameter sie_call", "leave it out")

    monkeypatch.setattr(requests, "_find", refuse)
    assert not deferred(requests, Request(clock), NEVER, "x").end_if_unwanted(asks_triton=False)


def test_a_call_is_held_until_all_its_requests_are_answered(clock):
    call, other, held = Gone(), Gone(), []
    requests = open_requests(calls={"call": call, "other": other})
    made = []
    for token in ("call", "call", "other"):
        made.append(deferred(requests, Request(clock), NEVER, token))
        held.append([call.is_held, other.is_held])
    for each in (made[0], made[2], made[1]):
        each.answer({})
        held.append([call.is_held, other.is_held])
    requests.close()
    assert held == [[True, False]] * 2 + [[True, True]] * 2 + [[True, False], [False, False]]


def test_a_request_for_which_no_clock_starts_is_refused_and_later_ones_have_deadlines(requests, clock, monkeypatch):
    refused, later = Request(clock), Request(clock)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "_start_new_thread", no_thread)
        for _ in range(2):
            with pytest.raises(BusyError, match="no thread"):
                deferred(requests, refused, clock.now + 20 * MS)
    assert not refused.is_deferred
    deferred(requests, later, clock.now + 20 * MS)
    clock.advance(20 * MS)
    assert later.answered.wait(10)


def test_deadlines_of_answered_requests_are_dropped(requests, clock):
    """A client may set a deadline of hours and be answered at once, again and again."""
    soon = Request(clock)
    deferred(requests, soon, clock.now + 20 * MS)
    for _ in range(1000):
        deferred(requests, Request(clock), clock.now + 3_600_000 * MS).answer({"x": 1})
    assert len(requests._deadlines) < 100
    clock.advance(20 * MS)
    assert soon.answered.wait(10)
