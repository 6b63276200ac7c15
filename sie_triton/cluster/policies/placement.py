"""Choose the worker that serves a model: one that has it in memory, else the one where room for it is cheapest."""

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

from sie_triton.cluster.messages import Health
from sie_triton.controller.choice import Resident, victims


def free_bytes(memory: Mapping[str, Any], share: float) -> int:
    """Return what one device has free of its `share`, the one with the most: a model is on one device only.

    >>> gpus = [{"limit_bytes": 100, "used_bytes": 60}, {"limit_bytes": 100, "used_bytes": 30}]
    >>> free_bytes({"limit_bytes": 200, "used_bytes": 90, "devices": gpus}, 0.9), free_bytes({}, 0.9)
    (60, 0)
    """
    devices = memory.get("devices") or [memory]
    return max(int(each.get("limit_bytes", 0) * share - each.get("used_bytes", 0)) for each in devices)


def order(
    model: str, num_bytes: int, workers: Sequence[Health], claims: Mapping[str, Collection[str]] = MappingProxyType({})
) -> list[str]:
    """Return the workers that can serve a model, the best first. `claims`: the models that each has claimed.

    A worker with the model in memory is best. Among the others, the one whose least recently used models make room for
    `num_bytes`; it counts how lately the last of them was used. A claimed model that is not in memory yet will take as
    much. Then the worker with the fewest models and requests, and a hash of both names, so that equal workers share the
    models. A worker that is not ready cannot serve.

    >>> def worker(name, resident, free=0):
    ...     return Health(name, "p", "", True, ["m"], [], resident, free, 0, 10)
    >>> order("m", 5, [worker("a", {"x": (5, 10.0)}), worker("b", {"m": (5, 900.0)}), worker("c", {"x": (5, 60.0)})])
    ['b', 'c', 'a']
    >>> order("m", 5, [worker("a", {"x": (5, 10.0)}), worker("b", {}, free=7)])
    ['b', 'a']
    >>> order("m", 5, [worker("a", {"x": (5, 10.0)}), worker("b", {}, free=7)], {"b": ["y", "z"]})
    ['a', 'b']
    """
    able = [each for each in workers if each.is_ready and model in each.models]
    return [each.worker for each in sorted(able, key=lambda each: _cost(model, num_bytes, each, claims))]


def _cost(
    model: str, num_bytes: int, worker: Health, claims: Mapping[str, Collection[str]]
) -> tuple[bool, float, int, int, bytes]:
    is_resident = model in worker.resident
    coming = {*claims.get(worker.worker, ())} - worker.resident.keys() - {model}
    lost = 0.0 if is_resident else _recency_lost(num_bytes * (1 + len(coming)), worker)
    mixed = blake2b(f"{model} {worker.worker}".encode(), digest_size=8).digest()
    return not is_resident, lost, len(worker.resident) + len(coming), worker.open, mixed


def _recency_lost(num_bytes: int, worker: Health) -> float:
    """Return how lately a model was used that must leave for `num_bytes`: 0 if none must, below 1 for the oldest.

    Infinite if all of them are not enough.
    """
    to_free = num_bytes - worker.free_bytes
    if to_free <= 0:
        return 0.0
    residents = [Resident(name, int(size), -int(idle_s * 1e9), 0) for name, (size, idle_s) in worker.resident.items()]
    leaving = victims(residents, to_free, now_ns=0, min_residency_ns=-(2**62))
    if sum(worker.resident[name][0] for name in leaving) < to_free:
        return float("inf")
    return max(1 / (1 + worker.resident[name][1]) for name in leaving)


def may_claim(worker: str, preferred: Sequence[str], waited_s: float, turn_s: float = 0.5) -> bool:
    """Return whether it is a worker's turn: each has `turn_s` before the next in order may claim the model, too.

    >>> may_claim("b", ["a", "b"], 0.1), may_claim("b", ["a", "b"], 0.7), may_claim("c", ["a", "b"], 9)
    (False, True, False)
    """
    return worker in preferred and waited_s >= preferred.index(worker) * turn_s


def should_help(worker: Health, holders: Collection[str], backlog: int, workers: Sequence[Health]) -> bool:
    """Return whether an idle worker should serve a model besides its holders, which do not keep up with `backlog`.

    They do not if twice as many requests wait as they all may have open. A worker is idle with a quarter of its own.
    """
    capacity = sum(each.limit for each in workers if each.worker in holders)
    return (
        worker.worker not in holders and worker.is_ready and backlog > 2 * capacity and worker.open * 4 <= worker.limit
    )
