"""The caller's timeout on a fake clock: the timeout that the server receives, and the transport's own."""

from itertools import pairwise

import pytest

from sie_triton import BusyError, InputError
from sie_triton.client import retry
from sie_triton.client.connections import finished
from sie_triton.client.failures import StageDied
from sie_triton.client.limits import ClientLimits
from sie_triton.client.retry import NETWORK_TIMEOUT_S, Deadline, repeated
from sie_triton.errors import SIEError, Unreachable


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """Seconds; only sleeping moves it."""
    now = [1000.0]
    monkeypatch.setattr(retry, "monotonic", lambda: now[0])
    return now


def test_the_server_gets_the_remaining_time(clock):
    deadline = Deadline.after(5)
    assert deadline.parameters() == {"timeout": 5_000_000}
    clock[0] += 3.5
    assert deadline.left_s == 1.5
    assert deadline.parameters() == {"timeout": 1_500_000}


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_transport_waits_longer_than_the_servers_timeout(clock, transport):
    """The server's own response, which explains the failure, must arrive before the transport gives up."""
    deadline = Deadline.after(5)
    clock[0] += 2
    assert 3 < deadline.wait_s(transport) <= 3 + 1


def test_less_than_a_microsecond_is_sent_as_one(clock):
    """Triton takes 0 for no limit."""
    deadline = Deadline.after(5)
    clock[0] = 1005 - 4e-7
    assert deadline.parameters() == {"timeout": 1}


@pytest.mark.parametrize("late_s", [0, 7])
def test_a_request_past_its_deadline_is_not_sent(clock, late_s):
    deadline = Deadline.after(5)
    clock[0] += 5 + late_s
    assert deadline.left_s == 0
    with pytest.raises(BusyError, match="timeout: passed before the request was sent"):
        deadline.parameters()


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_without_a_timeout_none_is_sent(clock, transport):
    deadline = Deadline.after(None)
    assert deadline.parameters() == {}
    assert deadline.wait_s(transport) == NETWORK_TIMEOUT_S


def tried(clock, timeout, errors, *, is_met=True):
    """Return the answer, or the error, of a call that fails with each of the errors, and the seconds of its tries."""
    started, tries = clock[0], []

    async def call():
        tries.append(clock[0] - started)
        for error in errors:
            raise error
        return "answer"

    async def sleep(seconds):
        clock[0] += seconds

    try:
        return finished(repeated(call, Deadline.after(timeout), lambda: is_met, sleep)), tries
    except SIEError as exc:
        return exc, tries


@pytest.mark.parametrize(
    ("timeout", "is_met", "error", "seconds"),
    [
        (None, True, BusyError, ClientLimits.retry_s),
        (None, False, BusyError, ClientLimits.retry_s),
        (None, True, Unreachable, ClientLimits.retry_s),
        # Its address may be wrong.
        (None, False, Unreachable, ClientLimits.first_retry_s),
        (100, False, Unreachable, 100),
        (100, True, BusyError, 100),
        (1, True, BusyError, 1),
        (100, True, InputError, 0),
    ],
)
def test_retries_end_at_the_deadline(clock, timeout, is_met, error, seconds):
    """No wait goes beyond it; the longest between two attempts is 2 s."""
    answer, attempts = tried(clock, timeout, iter(lambda: error("no"), None), is_met=is_met)
    assert isinstance(answer, error)
    assert seconds - 2 <= attempts[-1] <= seconds
    assert (len(attempts) > 1) == (seconds > 0)


@pytest.mark.parametrize(("num_deaths", "is_answered"), [(3, True), (4, False)])
def test_a_request_whose_stage_dies_is_sent_again_a_few_times(clock, num_deaths, is_answered):
    """It may be why: Triton notices a death after a second, and a new stage takes seconds."""
    errors = iter([BusyError("no"), *[StageDied("Stub process 'x' is not healthy.")] * num_deaths])
    answer, attempts = tried(clock, 60, errors)
    assert (answer == "answer") is is_answered
    assert isinstance(answer, StageDied) is not is_answered
    assert [round(b - a) for a, b in pairwise(attempts[1:])] == [1, 2, 4]
