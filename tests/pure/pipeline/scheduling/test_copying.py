"""When a busy model asks for a copy, and when an idle copy goes: pure functions of times."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.pipeline.limits import CopyLimits
from sie_triton.pipeline.scheduling.copying import is_idle, wants_copy

SECOND = 1_000_000_000
LIMITS = CopyLimits(after_s=3, again_s=30, idle_s=60)


@pytest.mark.parametrize(
    ("now", "crowded_since", "joined", "left", "expected"),
    [
        (100, 0, 0, 0, False),  # the queue is no longer than the passes
        (100, 98, 0, 0, False),
        (100, 97, 0, 0, True),
        # the queue must be too long with the latest copy, too
        (100, 50, 98, 0, False),
        (100, 50, 97, 0, True),
        (100, 97, 50, 0, True),
        # one was taken or failed
        (100, 50, 0, 71, False),
        (100, 50, 0, 70, True),
        (100, 98, 0, 70, False),
        (100, 0, 0, 1, False),
    ],
)
def test_a_model_asks_for_a_copy(now, crowded_since, joined, left, expected):
    times = {"crowded_since_ns": crowded_since, "joined_ns": joined, "left_ns": left}
    found = wants_copy(now * SECOND, **{name: each * SECOND for name, each in times.items()}, limits=LIMITS)
    assert found == expected


@pytest.mark.parametrize(("now", "num_passes", "expected"), [(159, 0, False), (160, 0, True), (999, 1, False)])
def test_an_idle_copy_goes(now, num_passes, expected):
    assert is_idle(now * SECOND, last_pass_ns=100 * SECOND, num_passes=num_passes, limits=LIMITS) == expected


@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=80))
def test_a_copy_that_is_taken_again_and_again_comes_once_in_a_while(steps):
    """By turns a model is crowded and its copy is taken; `is_taken` says so after each pause in seconds."""
    now, left, times = 100, 0, []
    for pause, is_taken in steps:
        now += pause
        if wants_copy(now * SECOND, crowded_since_ns=SECOND, left_ns=left * SECOND, limits=LIMITS) and is_taken:
            left = now
            times.append(now)
    assert all(later - earlier >= LIMITS.again_s for earlier, later in pairwise(times))
