"""The choices of a device for a model or a copy of one, and of models to evict, as pure functions."""

from collections.abc import Sequence
from dataclasses import dataclass

# Among models of at least this share of the largest, last use decides: sizes of equal models differ by chance.
ABOUT_AS_LARGE = 0.5


@dataclass(frozen=True, slots=True)
class Resident:
    """A model in memory of one device, or a copy of it, as `victims` sees it.

    Times are monotonic ns; `is_busy` is True while the model has requests in progress. Without a copy, the model is
    served by its other workers.
    """

    name: str
    num_bytes: int
    last_used_ns: int
    resident_since_ns: int
    is_busy: bool = False
    is_copy: bool = False


@dataclass(frozen=True, slots=True)
class Device:
    """A device, as `place` sees it; sizes in bytes.

    `free` can be granted now; it is negative under pressure. Evictions in progress make `coming` free, without what
    earlier loads wait for, which may leave it negative. `most` is free without any model. `residents` can be evicted;
    `num_busy` models load or have requests. If memory `is_critical`, `victims` spares none.
    """

    name: str
    free: int
    most: int
    residents: Sequence[Resident] = ()
    coming: int = 0
    num_busy: int = 0
    is_critical: bool = False


def place(devices: Sequence[Device], wanted: int, *, now_ns: int, min_residency_ns: int) -> Device:
    """Return the device on which to load a model of `wanted` bytes.

    One with room is best, then one where evictions in progress make room, then the one whose `victims` cost least:
    copies cost nothing, idle models less than busy ones, then those whose latest use is longest ago. If no victims are
    enough, the fewest bytes must be missing. Of equal devices, the one with the fewest busy models is chosen, then the
    one with most room. A device that could never hold the model is chosen only if none could.

    >>> old, new = Resident("old", 5, 1, 0), Resident("new", 5, 2, 0)
    >>> full, half = Device("cuda:0", 0, 9, [old]), Device("cuda:1", 4, 9, [new])
    >>> [place([full, half], wanted, now_ns=9, min_residency_ns=0).name for wanted in (4, 5, 9)]
    ['cuda:1', 'cuda:0', 'cuda:1']
    """
    able = [device for device in devices if wanted <= device.most] or devices
    return min(able, key=lambda device: _cost(device, wanted, now_ns, min_residency_ns))


def _cost(device: Device, wanted: int, now_ns: int, min_residency_ns: int) -> tuple[int, bool, int, bool, int, int]:
    short = wanted - device.free
    lacking = short - device.coming if short > 0 else 0
    leaving = victims(
        device.residents, lacking, now_ns=now_ns, min_residency_ns=min_residency_ns, critical=device.is_critical
    )
    chosen = [resident for resident in device.residents if resident.name in leaving]
    missing = max(0, lacking - sum(each.num_bytes for each in chosen))
    models = [each for each in chosen if not each.is_copy]
    latest_use = max((each.last_used_ns for each in models), default=-1)
    is_busy = any(each.is_busy for each in models)
    return missing, is_busy, latest_use, short > 0, device.num_busy, -device.free


def place_copy(devices: Sequence[Device], wanted: int) -> Device | None:
    """Return the device for a copy of `wanted` bytes: one with room now, for which nothing leaves; None if none has.

    `devices` are those that do not have the model. Of several, the one with the fewest busy models is chosen, then the
    one with most room. A copy comes only into free memory and leaves first, so it and a model never evict each other in
    turns.

    >>> place_copy([Device("cuda:1", 3, 9), Device("cuda:2", 5, 9, num_busy=1)], 4).name
    'cuda:2'
    """
    able = [device for device in devices if device.free >= wanted]
    return min(able, key=lambda device: (device.num_busy, -device.free), default=None)


def victims(
    residents: Sequence[Resident], to_free: int, *, now_ns: int, min_residency_ns: int, critical: bool = False
) -> list[str]:
    """Return the models to evict, in order, so that `to_free` bytes become free, or as many as possible.

    Copies go first, however new they are, then idle models, then busy ones, each the least recently used first. If the
    first idle model is not enough, or memory is `critical`, a large one of the less recently used half goes first: one
    eviction instead of several. Unless memory is critical, a model stays that has been in memory for less than
    `min_residency_ns`, so that two models cannot evict each other in turns. A model that takes no memory stays.

    >>> a, b, c = (Resident(n, size, used, 0) for n, size, used in (("a", 1, 5), ("b", 9, 6), ("c", 9, 7)))
    >>> victims([a, b, c], 1, now_ns=10, min_residency_ns=0)
    ['a']
    >>> victims([a, b, c], 5, now_ns=10, min_residency_ns=0)
    ['b']
    """
    movable = [
        each
        for each in residents
        if each.num_bytes and (critical or each.is_copy or now_ns - each.resident_since_ns >= min_residency_ns)
    ]
    models = [each for each in movable if not each.is_copy]
    copies, idle = [each for each in movable if each.is_copy], [each for each in models if not each.is_busy]
    chosen: list[str] = []
    for group in (copies, idle, [each for each in models if each.is_busy]):
        waiting = sorted(group, key=lambda r: (r.last_used_ns, r.name))
        while waiting and to_free > 0:
            victim = waiting[0]
            if group is idle and (critical or victim.num_bytes < to_free):
                half = waiting[: (len(waiting) + 1) // 2]
                large = ABOUT_AS_LARGE * max(r.num_bytes for r in half)
                victim = next(r for r in half if r.num_bytes >= large)
            waiting.remove(victim)
            chosen.append(victim.name)
            to_free -= victim.num_bytes
    return chosen
