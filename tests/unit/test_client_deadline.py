"""What the caller's time becomes, by a clock of the test's own: what the server is told, and when the transport gives
up."""

import pytest

from sie_triton import BusyError
from sie_triton.client import retry
from sie_triton.client.retry import NETWORK_TIMEOUT_S, Deadline


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """Seconds."""
    now = [1000.0]
    monkeypatch.setattr(retry, "monotonic", lambda: now[0])
    return now


def test_the_server_is_told_what_is_left(clock):
    deadline = Deadline.after(5)
    assert deadline.parameters() == {"timeout": 5_000_000}
    clock[0] += 3.5
    assert deadline.left_s == 1.5
    assert deadline.parameters() == {"timeout": 1_500_000}


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_the_transport_waits_longer_than_the_server_is_told(clock, transport):
    """So that the server's own answer, which says what happened, can come."""
    deadline = Deadline.after(5)
    clock[0] += 2
    assert 3 < deadline.wait_s(transport) <= 3 + 1


def test_less_than_a_microsecond_is_told_as_one(clock):
    """Triton takes 0 for no limit."""
    deadline = Deadline.after(5)
    clock[0] = 1005 - 4e-7
    assert deadline.parameters() == {"timeout": 1}


@pytest.mark.parametrize("late_s", [0, 7])
def test_what_is_too_late_is_not_sent(clock, late_s):
    deadline = Deadline.after(5)
    clock[0] += 5 + late_s
    assert deadline.left_s == 0
    with pytest.raises(BusyError, match="timeout: passed before the request was sent"):
        deadline.parameters()


@pytest.mark.parametrize("transport", ["http", "grpc"])
def test_without_a_time_the_server_is_told_none(clock, transport):
    deadline = Deadline.after(None)
    assert deadline.parameters() == {}
    assert deadline.wait_s(transport) == NETWORK_TIMEOUT_S
