"""Counts of the requests of all door processes, which share one directory of prometheus_client's files."""

import logging
import os
from pathlib import Path

from prometheus_client import CollectorRegistry, Histogram, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector

from sie_triton.processes.mapped_files import reserve

# Variable of prometheus_client with the directory, which must be set before it is imported.
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"

# Files of a process, by the kinds of metrics of doors and gateways, and the size at which they are reserved, in bytes:
# enough for the counts of 60 pairs of a route and a status. The library makes larger ones with holes.
KINDS, NUM_BYTES = ("histogram", "counter", "gauge_livemax", "gauge_livesum"), 256 * 1024

log = logging.getLogger(__name__)

# Upper limits of the buckets, in seconds.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

DURATION = Histogram(
    "sie_door_request_duration_seconds",
    "time from the head of a request at the door to its response",
    ["route", "status"],
    registry=None,
    buckets=SECONDS,
)


def reserve_files() -> None:
    """Reserve the space of this process's files; to be called before the first count.

    If there is none, this process counts for itself, and its counts are not shown.
    """
    directory = os.environ.get(DIRECTORY)
    try:
        for kind in KINDS if directory else ():
            reserve(Path(str(directory), f"{kind}_{os.getpid()}.db"), NUM_BYTES)
    except OSError as exc:
        log.warning("the requests of this process are not shown in the metrics: %s", exc)
        values.ValueClass = values.MutexValue


def count(route: str, status: int, seconds: float) -> None:
    """Count a request. `route` is the pattern of its path, never the path itself, which clients choose."""
    DURATION.labels(route, status).observe(seconds)


def exposition() -> bytes:
    """Return the counts of all processes in Prometheus' text format."""
    registry = CollectorRegistry()
    if directory := os.environ.get(DIRECTORY):
        forget_dead(Path(directory))
        MultiProcessCollector(registry, path=directory)  # type: ignore[no-untyped-call]
    else:
        registry.register(DURATION)
    return generate_latest(registry)


def forget_dead(directory: Path) -> None:
    """Remove the gauges of processes that have ended; their counts stay."""
    for path in directory.glob("gauge_live*.db"):
        if not Path(f"/proc/{path.stem.rpartition('_')[2]}").exists():
            path.unlink(missing_ok=True)


def variables(status_dir: Path) -> dict[str, str]:
    """Return the variable for door processes, and make their directory."""
    directory = status_dir / "door_metrics"
    directory.mkdir(parents=True, exist_ok=True)
    for path in directory.iterdir():
        path.unlink()
    return {DIRECTORY: str(directory)}
