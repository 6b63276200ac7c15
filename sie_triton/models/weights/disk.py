"""Least recently used weights leave a disk that is too full: commits of the local cache, converted pickles, graphs.

Only what this package has recorded a use of, or has made itself, is removed, and nothing that a process uses.
"""

import fcntl
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import Any

from sie_triton.contract.spec import Runtime
from sie_triton.models.weights.entries import Entry, entries
from sie_triton.models.weights.limits import LIMITS
from sie_triton.models.weights.local_cache import OURS, hub_cache
from sie_triton.models.weights.uses import if_unused, last_use, record_beside

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MadeDirectory:
    """A directory that this package has made: the graphs of a model, or a model whose pickles were converted."""

    directory: Path
    size: int
    last_use: float  # in seconds since 1970; without a record, when it was made

    @property
    def name(self) -> str:
        return f"{self.directory.parent.name}/{self.directory.name}"

    def remove(self) -> bool:
        """Remove the directory; return False if a process uses it."""
        record = record_beside(self.directory)
        with if_unused(record) as unused:
            if unused:
                shutil.rmtree(self.directory, ignore_errors=True)
                record.unlink(missing_ok=True)
        return unused


@dataclass(frozen=True, slots=True)
class DiskCache:
    """The disk that holds the local cache `weights`; converted pickles and graphs are below `data`.

    `threshold_percent` of the disk may be in use; None: nothing is ever removed.
    """

    weights: Path
    data: Path
    threshold_percent: float | None
    usage: Callable[[Path], Any] = shutil.disk_usage
    now: Callable[[], float] = time

    @classmethod
    def of(cls, runtime: Runtime, data: Path) -> "DiskCache":
        threshold = runtime.disk_pressure_threshold_percent if runtime.disk_cache_enabled else None
        return cls(hub_cache(), data, threshold)

    def make_room(self, num_bytes: int = 0) -> list[str]:
        """Remove entries until `num_bytes` more fit below the threshold; return the names of the removed entries.

        If everything else is in use, was used just now, or is not ours, the disk stays fuller than that.
        """
        if self.threshold_percent is None or not self.weights.is_dir() or self._fits(num_bytes):
            return []
        removed = []
        with _one_at_a_time(self.weights):
            for entry in self._removable():
                if self._fits(num_bytes):
                    break
                with suppress(OSError):
                    if entry.remove():
                        removed.append(entry.name)
                        log.warning("the disk is full: removed %s, %.0f MB", entry.name, entry.size / 1e6)
        return removed

    def _fits(self, num_bytes: int) -> bool:
        assert self.threshold_percent is not None
        usage = self.usage(self.weights)
        return bool(usage.used + num_bytes <= (usage.used + usage.free) * self.threshold_percent / 100)

    def _removable(self) -> Sequence[Entry | MadeDirectory]:
        """Return the entries that may be removed, least recently used first."""
        found: list[Entry | MadeDirectory] = [*entries(self.weights)]
        if self.data.is_dir() and self.data.stat().st_dev == self.weights.stat().st_dev:
            found += (each for kind in ("converted", "graphs") for each in made_directories(self.data / kind))
        recent = self.now() - LIMITS.recent_s
        dated = [(entry.last_use, entry.name, entry) for entry in found if entry.last_use is not None]
        return [entry for used, _, entry in sorted(dated, key=lambda each: each[:2]) if used < recent]


def made_directories(home: Path, pattern: str = "[!.]*/") -> Iterator[MadeDirectory]:
    """Yield the directories in `home` that match, without those that are being made."""
    for path in sorted(home.glob(pattern)):
        with suppress(OSError):
            used = last_use(record_beside(path))
            size = sum(file.lstat().st_size for file in path.rglob("*") if file.is_file())
            yield MadeDirectory(path, size, path.stat().st_mtime if used is None else used)


@contextmanager
def _one_at_a_time(weights: Path) -> Iterator[None]:
    """Let one process at a time remove entries, so that two do not remove twice as much."""
    try:
        file = (weights / f"{OURS}.lock").open("ab")
    except OSError:  # a cache that is read-only
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
