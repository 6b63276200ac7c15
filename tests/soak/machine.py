"""Faults of a machine: no space, memory, cores or file handles, and bytes that are not what was written."""

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from resource import RLIMIT_NOFILE
from subprocess import DEVNULL, Popen
from sys import executable

import numpy as np
import psutil

from sie_triton.errors import ServerError
from tests.soak.targets import MODELS, Cluster, OneServer, Target

SHM = Path("/dev/shm")

# Space that a full file system has left, and memory that a ballast takes, in bytes.
LEFT, BALLAST = 1_000_000, 2_000_000_000

# Seconds by which the clock jumps.
CLOCK_S = 3600.0

# A larger file system is the machine's: filling it would take the machine's memory or disk. scripts/soak mounts small
# ones.
MAX_FILLED = 4_000_000_000

# Time for which an object store is silent beyond that of other faults, in seconds: longer than its clients wait.
SILENT_S = 10.0

# Methods of an object store.
ALL_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")

# Files of each kind that are spoiled at once, and a number above those of all processes.
NUM_SPOILED, NO_PID = 3, 5_000_000


def can_be_filled(directory: Path) -> bool:
    return psutil.disk_usage(str(directory)).total <= MAX_FILLED


@contextmanager
def full(directory: Path) -> Iterator[None]:
    """Fill a file system up to a megabyte."""
    path = directory / "ballast-of-the-soak"
    try:
        with suppress(OSError), path.open("wb") as file:
            for _ in range(max(0, psutil.disk_usage(str(directory)).free - LEFT) // 2**20):
                file.write(bytes(2**20))
        yield
    finally:
        path.unlink(missing_ok=True)


def full_shm(target: Target, rng: np.random.Generator) -> AbstractContextManager[None]:
    return full(SHM)


def full_disk(target: Target, rng: np.random.Generator) -> AbstractContextManager[None]:
    return full(target.root)


@contextmanager
def no_handles(target: Target, rng: np.random.Generator) -> Iterator[None]:
    """Forbid all processes of a part to open files or connections."""
    limits = {}
    for process in target.of(str(rng.choice(target.parts))):
        with suppress(psutil.Error):
            before = process.rlimit(RLIMIT_NOFILE)
            process.rlimit(RLIMIT_NOFILE, (process.num_fds(), before[1]))
            limits[process] = before
    yield
    for process, before in limits.items():
        with suppress(psutil.Error):
            process.rlimit(RLIMIT_NOFILE, before)


@contextmanager
def running(code: str, number: int = 1) -> Iterator[None]:
    processes = [Popen([executable, "-c", code], stdout=DEVNULL) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def ballast(target: Target, rng: np.random.Generator) -> AbstractContextManager[None]:
    """Another program takes memory."""
    return running(f"a = bytearray({BALLAST}); import time; time.sleep(60)")


def starved(target: Target, rng: np.random.Generator) -> AbstractContextManager[None]:
    """Other programs take all cores twice."""
    return running("while True: pass", 2 * (psutil.cpu_count() or 1))


@contextmanager
def clock_jumps(target: Target, rng: np.random.Generator) -> Iterator[None]:
    """Set the clock an hour forward or back, and right again at the end."""
    target.set_clock(float(rng.choice([-CLOCK_S, CLOCK_S])))
    try:
        yield
    finally:
        target.set_clock(0.0)


@contextmanager
def spoiled_records(target: Target, rng: np.random.Generator) -> Iterator[None]:
    """Leave records of processes that never ran, with noise or cut off, and write noise into measurements.

    Records of living processes are memory that they share, which is not spoiled here.
    """
    for path in chosen(rng, files(target, "status/*.status")):
        content = rng.bytes(path.stat().st_size)[: rng.integers(10_000)]
        name = path.name.rsplit(".", 2)[0]
        path.with_name(f"{name}.{NO_PID + rng.integers(1000)}.status").write_bytes(content)
    for path in chosen(rng, target.measurements.glob("*.json")):
        path.write_bytes(rng.bytes(200))
    yield


def files(target: Target, pattern: str) -> list[Path]:
    return [path for server in target.servers() for path in server.glob(pattern)]


def chosen(rng: np.random.Generator, paths: Iterable[Path]) -> Sequence[Path]:
    """Return a few of the paths."""
    ordered = sorted(paths)
    return [ordered[i] for i in rng.permutation(len(ordered))[:NUM_SPOILED]]


def truncated_weights(target: Target, rng: np.random.Generator) -> AbstractContextManager[None]:
    """Cut a model's weights in half."""
    return spoiled_weights(target, lambda path: os.truncate(path, path.stat().st_size // 2))


def exchanged_weights(target: Target, rng: np.random.Generator) -> AbstractContextManager[None]:
    """Put weights of another architecture in the place of a model's."""
    return spoiled_weights(target, lambda path: put(path, target.saved.other_weights.read_bytes()))


@contextmanager
def spoiled_weights(target: Target, spoil: Callable[[Path], None]) -> Iterator[None]:
    """Spoil a model's weights and evict it: requests get an error with the reason until they are back."""
    assert isinstance(target, OneServer)
    path = target.saved.weights
    before = path.read_bytes()
    try:
        spoil(path)
        with suppress(ServerError):
            target.act(MODELS.spoiled, "evict")
        yield
    finally:
        put(path, before)
    with suppress(ServerError):  # it may be loaded already
        target.act(MODELS.spoiled, "load")


def put(path: Path, content: bytes) -> None:
    """Write a file in the place of another one, which those who have mapped it keep: workers compute from it."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


@contextmanager
def faulty_hub(target: Target, rng: np.random.Generator) -> Iterator[None]:
    """Evict a model whose files the cache has lost, while the hub refuses everything; then bring it back."""
    assert isinstance(target, OneServer)
    try:
        target.hub.refused[MODELS.of_hub] = (503, "", "overloaded")
        shutil.rmtree(target.hub_cache)
        with suppress(ServerError):
            target.act(MODELS.of_hub, "evict")
        yield
    finally:
        target.hub.refused.clear()
    with suppress(ServerError):  # it may be loaded already
        target.act(MODELS.of_hub, "load")


@contextmanager
def faulty_store(target: Target, rng: np.random.Generator) -> Iterator[None]:
    """The payload store refuses everything, or answers nothing."""
    assert isinstance(target, Cluster)
    store = target.store
    store.away, store.silent = ((True, ()), (False, ALL_METHODS))[rng.integers(2)]
    try:
        if store.silent:
            time.sleep(SILENT_S)
        yield
    finally:
        store.away, store.silent = False, ()
