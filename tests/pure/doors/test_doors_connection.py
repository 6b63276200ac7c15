"""Speed at which a client must read a response; the loop's timers and the transport are doubles."""

from types import SimpleNamespace

import pytest
import uvicorn
from uvicorn.server import ServerState

from sie_triton.http.connection import Connection


class Clock:
    """Event loop's timers; `fire` runs the latest."""

    def __init__(self) -> None:
        self.timers = []

    def call_later(self, seconds, act, *given):
        self.timers.append((seconds, lambda: act(*given)))
        return SimpleNamespace(cancel=lambda: None)

    def fire(self) -> None:
        _, act = self.timers.pop()
        act()


@pytest.fixture
def stalled():
    """A connection whose client has a megabyte to read."""
    clock, buffer = Clock(), SimpleNamespace(size=1_000_000, is_aborted=False)
    transport = SimpleNamespace(
        get_extra_info=lambda *_: None,
        get_write_buffer_size=lambda: buffer.size,
        abort=lambda: setattr(buffer, "is_aborted", True),
    )
    connection = Connection(uvicorn.Config(lambda: None, log_config=None), ServerState(), {}, _loop=clock)
    connection.connection_made(transport)
    clock.timers.clear()
    connection.pause_writing()
    return clock, buffer


def test_a_client_reads_256_kib_in_ten_seconds(stalled):
    clock, buffer = stalled
    for _ in range(3):
        assert [seconds for seconds, _ in clock.timers] == [10]
        buffer.size -= 256 * 1024
        clock.fire()
        assert not buffer.is_aborted


def test_a_client_that_reads_less_is_cut(stalled):
    clock, buffer = stalled
    buffer.size -= 256 * 1024 - 1
    clock.fire()
    assert buffer.is_aborted
    assert clock.timers == []
