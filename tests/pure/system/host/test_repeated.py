"""Actions are repeated inside their context only, and one that hangs keeps no program from its end."""

from threading import Event, active_count

from sie_triton.system.host.repeated import repeated
from tests.support.controller import wait_for


def test_an_action_is_repeated_until_the_context_ends():
    calls: list[int] = []
    before = active_count()
    with repeated(lambda: calls.append(1), 0.001, "test"):
        wait_for(lambda: len(calls) > 2)
    assert active_count() == before


def test_an_action_that_hangs_is_left_behind():
    begun, released, is_over = Event(), Event(), Event()

    def hang() -> None:
        begun.set()
        released.wait(10)
        is_over.set()

    with repeated(hang, 0.001, "test", last_s=0.01):
        begun.wait()
    assert not is_over.is_set()
    released.set()
