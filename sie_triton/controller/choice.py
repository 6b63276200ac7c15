"""The choice of models to evict, as a pure function."""

from collections.abc import Sequence
from dataclasses import dataclass

# Among models of at least this share of the largest, last use decides: sizes of equal models differ by chance.
ABOUT_AS_LARGE = 0.5


@dataclass(frozen=True, slots=True)
class Resident:
    """A model in memory, as `victims` sees it.

    Times are monotonic ns; `is_busy` is True while the model has requests in progress.
    """

    name: str
    num_bytes: int
    last_used_ns: int
    resident_since_ns: int
    is_busy: bool = False


def victims(
    residents: Sequence[Resident], to_free: int, *, now_ns: int, min_residency_ns: int, critical: bool = False
) -> list[str]:
    """Return the models to evict, in order, so that `to_free` bytes become free, or as many as possible.

    Idle models go before busy ones, the least recently used first. If the first idle model is not enough, or memory is
    `critical`, a large one of the less recently used half goes first: one eviction instead of several. Unless memory is
    critical, a model stays that has been in memory for less than `min_residency_ns`, so that two models cannot evict
    each other in turns. A model that takes no memory stays.

    >>> a, b, c = (Resident(n, size, used, 0) for n, size, used in (("a", 1, 5), ("b", 9, 6), ("c", 9, 7)))
    >>> victims([a, b, c], 1, now_ns=10, min_residency_ns=0)
    ['a']
    >>> victims([a, b, c], 5, now_ns=10, min_residency_ns=0)
    ['b']
    """
    chosen: list[str] = []
    for busy in (False, True):
        waiting = sorted(
            (
                r
                for r in residents
                if r.is_busy == busy and r.num_bytes and (critical or now_ns - r.resident_since_ns >= min_residency_ns)
            ),
            key=lambda r: (r.last_used_ns, r.name),
        )
        while waiting and to_free > 0:
            victim = waiting[0]
            if not busy and (critical or victim.num_bytes < to_free):
                half = waiting[: (len(waiting) + 1) // 2]
                large = ABOUT_AS_LARGE * max(r.num_bytes for r in half)
                victim = next(r for r in half if r.num_bytes >= large)
            waiting.remove(victim)
            chosen.append(victim.name)
            to_free -= victim.num_bytes
    return chosen
