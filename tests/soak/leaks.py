"""The leak gate: what the processes that live through a run use over time, and how fast that grows."""

import sys
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import psutil

from sie_triton.controller.model_states import most_bytes
from sie_triton.system.host.process_memory import share_of
from tests.soak.sampling import sampled

if TYPE_CHECKING:  # it imports PyTorch
    from tests.soak.targets import Target

INTERVAL_S = 2.0

# Largest growth in an hour that counts as none: memory in MB, and file handles and threads by number.
BOUNDS: Mapping[str, float] = {"memory, MB": 100.0, "handles": 20.0, "threads": 10.0}

# Seconds of rest after a run, and memory in bytes that a worker may then keep beyond what it needed when it had loaded.
AT_REST_S, KEPT_BYTES = 60.0, 100_000_000

# The first part of a run, in which caches fill, is left out.
WARM_UP = 1 / 3


@dataclass
class Usage:
    """Samples of one process: seconds, and a row of memory in MB, handles and threads for each."""

    name: str
    times: list[float] = field(default_factory=list)
    rows: list[tuple[float, float, float]] = field(default_factory=list)

    def growth(self) -> dict[str, float]:
        """Return the growth by the hour, as the median of the slopes between samples (Theil 1950, Sen 1968).

        >>> usage = Usage("door", [0.0, 60.0, 120.0], [(10.0, 5, 3), (12.0, 5, 3), (14.0, 5, 3)])
        >>> usage.growth()
        {'memory, MB': 120.0, 'handles': 0.0, 'threads': 0.0}
        """
        times, rows = np.array(self.times), np.array(self.rows)
        # A few hundred pairs are enough, the far ones above all.
        half = len(times) // 2
        span = times[half:] - times[: len(times) - half]
        slopes = (rows[half:] - rows[: len(rows) - half]) / span[:, None]
        return dict(zip(BOUNDS, (3600 * np.median(slopes, axis=0)).tolist(), strict=True))


class Gate:
    """Samples of all processes of a target."""

    def __init__(self, target: "Target") -> None:
        self._target = target
        self._usages: dict[int, Usage] = {}
        # By worker: the largest number of bytes beyond what it may take.
        self._beyond: dict[str, int] = {}

    def sample(self) -> None:
        now, names = time.monotonic(), self._target.names()
        processes = [self._target.process, *self._target.process.children(recursive=True)]
        for part in ("stage", "worker"):
            processes += self._target.of(part)
        for process in {each.pid: each for each in processes}.values():
            try:
                with process.oneshot():
                    row = process.memory_info().rss / 1e6, float(process.num_fds()), float(process.num_threads())
                    name = names.get(process.pid) or " ".join(process.cmdline()[-3:])[-60:] or process.name()
            except psutil.Error:
                continue
            usage = self._usages.setdefault(process.pid, Usage(name))
            usage.times.append(now)
            usage.rows.append(row)
        for pid, record in self._target.worker_records().items():
            name = names.get(pid, str(pid))
            self._beyond[name] = max(share_of(pid).own - most_bytes(record), self._beyond.get(name, -sys.maxsize))

    def overgrown(self) -> dict[str, int]:
        """Return the workers that took more than their need, their passes and GROWTH_BYTES, with the bytes beyond."""
        return {name: beyond for name, beyond in self._beyond.items() if beyond > 0}

    def retaining(self) -> dict[str, int]:
        """Return the workers at rest that keep more than KEPT_BYTES beyond their need, with the bytes beyond."""
        names, found = self._target.names(), {}
        for pid, record in self._target.worker_records().items():
            beyond = share_of(pid).own - record["weights_bytes"] - record["beside_bytes"] - KEPT_BYTES
            if beyond > 0:
                found[names.get(pid, str(pid))] = beyond
        return found

    def watching(self) -> AbstractContextManager[None]:
        return sampled(self.sample, INTERVAL_S)

    def lasting(self, began: float, ended: float) -> list[Usage]:
        """Return the processes that lived through a run, without its first part."""
        since, found = began + WARM_UP * (ended - began), []
        for usage in self._usages.values():
            if usage.times[0] <= since and usage.times[-1] >= ended - 5 * INTERVAL_S:
                kept = [i for i, at in enumerate(usage.times) if at >= since]
                found.append(Usage(usage.name, [usage.times[i] for i in kept], [usage.rows[i] for i in kept]))
        return [each for each in found if len(each.times) > 10]


def leaking(usages: list[Usage]) -> dict[str, dict[str, float]]:
    """Return the processes that grow by more than the bounds, with what grows."""
    found = {}
    for usage in usages:
        beyond = {name: each for name, each in usage.growth().items() if each > BOUNDS[name]}
        if beyond:
            found[usage.name] = beyond
    return found


def fastest(usages: list[Usage]) -> dict[str, tuple[float, str]]:
    """Return the largest growth of each kind, with the process."""
    return {kind: max((usage.growth()[kind], usage.name) for usage in usages) for kind in BOUNDS} if usages else {}
