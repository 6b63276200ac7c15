"""Faults by a seeded schedule: processes that are killed or stopped, and a machine and clients that misbehave."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, Popen
from sys import executable

import httpx
import numpy as np
import psutil

from tests.soak.history import Happened
from tests.soak.targets import Target

# Durations of a stop, and of what a machine or a client does, in seconds.
STOP_S, MACHINE_S = 3.0, 5.0

# Pause between two faults, in seconds: longer than the service takes to be back.
QUIET_S = (10.0, 16.0)

SHM = Path("/dev/shm")

# Shared memory that a full /dev/shm has left, and memory that a ballast takes, in bytes.
SHM_LEFT, BALLAST = 1_000_000, 2_000_000_000

# A larger /dev/shm is the machine's, and filling it would take the machine's memory: scripts/soak mounts a small one.
MAX_SHM = 2_000_000_000

OVERSIZED = 70_000_000
NUM_HALF_OPEN = 100

Fault = Callable[[Target, np.random.Generator], Happened]


def schedule(target: Target, seed: int) -> Iterator[tuple[float, str, Fault]]:
    """Yield pauses in seconds, and the faults after them, for ever: all once in a random order, then again."""
    rng = np.random.default_rng(seed)
    faults = {f"kill {part}": killing(part) for part in target.parts}
    faults |= {f"stop {part}": stopping(part) for part in target.parts}
    faults |= {name: during(name, make) for name, make in MACHINE.items()}
    if psutil.disk_usage(str(SHM)).total > MAX_SHM:
        del faults["full /dev/shm"]
    while True:
        for name in rng.permutation(sorted(faults)):
            yield float(rng.uniform(*QUIET_S)), str(name), faults[str(name)]


def chosen(target: Target, part: str, rng: np.random.Generator) -> psutil.Process | None:
    found = target.of(part)
    return found[rng.integers(len(found))] if found else None


def killing(part: str) -> Fault:
    def kill(target: Target, rng: np.random.Generator) -> Happened:
        process, now = chosen(target, part, rng), time.monotonic()
        with suppress(psutil.Error):
            if process is not None:
                process.kill()
        return Happened(f"kill {part}", now, time.monotonic(), target.hurt_by(part))

    return kill


def stopping(part: str) -> Fault:
    def stop(target: Target, rng: np.random.Generator) -> Happened:
        process, began = chosen(target, part, rng), time.monotonic()
        with suppress(psutil.Error):
            if process is not None:
                process.suspend()
        time.sleep(STOP_S)
        with suppress(psutil.Error):
            if process is not None:
                process.resume()
        return Happened(f"stop {part}", began, time.monotonic())

    return stop


def during(name: str, make: Callable[[Target], object]) -> Fault:
    def happen(target: Target, rng: np.random.Generator) -> Happened:
        began = time.monotonic()
        with make(target):  # type: ignore[attr-defined]
            time.sleep(MACHINE_S)
        return Happened(name, began, time.monotonic())

    return happen


@contextmanager
def full_shm(target: Target) -> Iterator[None]:
    """Fill /dev/shm up to a megabyte."""
    path = SHM / f"soak-{target.process.pid}"
    try:
        with path.open("wb") as file:
            free = psutil.disk_usage(str(SHM)).free - SHM_LEFT
            for _ in range(free // 2**20):
                file.write(bytes(2**20))
        yield
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def running(code: str, number: int = 1) -> Iterator[None]:
    processes = [Popen([executable, "-c", code], stdout=DEVNULL) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def ballast(target: Target) -> object:
    """Another program takes memory."""
    return running(f"a = bytearray({BALLAST}); import time; time.sleep(60)")


def starved(target: Target) -> object:
    """Other programs take all cores twice."""
    return running("while True: pass", 2 * (psutil.cpu_count() or 1))


def address(target: Target) -> tuple[str, int]:
    host, _, port = target.http.removeprefix("http://").partition(":")
    return host, int(port)


@contextmanager
def half_open(target: Target) -> Iterator[None]:
    """Connections that send half a request, and nothing more."""
    with ExitStack() as stack:
        for _ in range(NUM_HALF_OPEN):
            connection = stack.enter_context(socket.create_connection(address(target)))
            connection.send(b"POST /v1/encode/t/m0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{")
        yield


@contextmanager
def slow_reader(target: Target) -> Iterator[None]:
    """A client that asks for much and reads nothing of it."""
    body = b'{"items": [' + b",".join([b'{"text": "a"}'] * 2000) + b"]}"
    head = f"POST /v1/encode/t/m0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(address(target)) as connection:
        connection.sendall(head.encode() + body)
        yield


@contextmanager
def oversized(target: Target) -> Iterator[None]:
    """Bodies beyond the limit: refused."""
    with suppress(httpx.HTTPError):  # the connection may be closed before all is sent
        answer = httpx.post(f"{target.http}/v1/encode/t/m0", content=bytes(OVERSIZED), timeout=60)
        assert answer.status_code == 413, answer.text
    yield


@contextmanager
def cancelled(target: Target) -> Iterator[None]:
    """Clients that hang up soon after they have asked."""
    body = {"items": [{"text": "word " * 50}] * 200}
    for i in range(20):
        with suppress(httpx.HTTPError):
            httpx.post(f"{target.http}/v1/encode/t/m{i % 3}", json=body, timeout=0.02 * (1 + i))
    yield


MACHINE: dict[str, Callable[[Target], object]] = {
    "full /dev/shm": full_shm,
    "memory ballast": ballast,
    "starved CPU": starved,
    "half-open connections": half_open,
    "slow reader": slow_reader,
    "oversized body": oversized,
    "cancelled requests": cancelled,
}
