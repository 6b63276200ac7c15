"""Counts of the requests of all door processes, which share one directory of prometheus_client's files."""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from sie_triton.system.host.files import reserve, reserve_rest

# Variable of prometheus_client with the directory, which must be set before it is imported.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"

# Files of a process, by the kinds of metrics of doors and gateways, and the size at which they are reserved, in bytes:
# enough for the counts of 60 pairs of a route and a status. The library makes larger ones with holes.
TOTALS, GAUGES, NUM_BYTES = ("histogram", "counter"), ("gauge_livemax", "gauge_livesum"), 256 * 1024

log = logging.getLogger(__name__)


DURATION = Histogram(
    "sie_door_request_duration_seconds",
    "time from the head of a request at the door to its response",
    ["route", "status"],
    registry=None,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)


def reserve_files() -> None:
    """Reserve the space of this process's files; to be called before the first count.

    Totals continue in the files of a process that has ended, so there are never more files than for the processes that
    have run at a time. If there is no space, this process counts for itself, and its counts are not shown.
    """
    if not (name := os.environ.get(DIRECTORY)):
        return
    directory = Path(name)
    try:
        with _locked(directory, fcntl.LOCK_EX):
            forget_dead(directory)
            for kind in GAUGES:
                reserve(_own(directory, kind), NUM_BYTES)
            for kind in TOTALS:
                _continue(directory, kind)
    except OSError as exc:
        log.warning("the requests of this process are not shown in the metrics: %s", exc)
        values.ValueClass = values.MutexValue


def count(route: str, status: int, seconds: float) -> None:
    """Count a request. `route` is the pattern of its path, never the path itself, which clients choose."""
    DURATION.labels(route, status).observe(seconds)


def exposition() -> bytes:
    """Return the counts of all processes in Prometheus' text format."""
    registry = CollectorRegistry()
    if not (directory := os.environ.get(DIRECTORY)):
        registry.register(DURATION)
        return generate_latest(registry)
    with _locked(Path(directory), fcntl.LOCK_SH):
        forget_dead(Path(directory))
        MultiProcessCollector(registry, path=directory)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def forget_dead(directory: Path) -> None:
    """Remove the gauges of processes that have ended; their totals stay."""
    for path in filter(_has_ended, directory.glob("gauge_live*.db")):
        path.unlink(missing_ok=True)


@contextmanager
def _locked(directory: Path, kind: int) -> Iterator[None]:
    """Lock the names of files: LOCK_EX to change those of totals, LOCK_SH to read the files."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, kind)
        yield
    finally:
        os.close(handle)


def _continue(directory: Path, kind: str) -> None:
    """Make this process's file of totals from that of a process that has ended, or a new one."""
    own, ended = _own(directory, kind), next(filter(_has_ended, directory.glob(f"{kind}_*.db")), None)
    if ended is not None and not own.exists():  # else a process had the same pid
        ended.rename(own)
    if own.exists():
        reserve_rest(own, NUM_BYTES)
    else:
        reserve(own, NUM_BYTES)


def _own(directory: Path, kind: str) -> Path:
    return directory / f"{kind}_{os.getpid()}.db"


def _has_ended(path: Path) -> bool:
    return not Path(f"/proc/{path.stem.rpartition('_')[2]}").exists()


def variables(status_dir: Path) -> dict[str, str]:
    """Return the variable for door processes, and make their directory."""
    directory = status_dir / "door_metrics"
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    return {DIRECTORY: str(directory)}
