"""Measure what known models cost before and when a request names them, beside a server that knows none."""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

from benchmarks.compare import MODEL
from sie_triton.client import SIEClient
from sie_triton.settings import Settings
from sie_triton.settings.sources import flag

FLAGS = ("data_dir", "models_dir", "device", "http_port", "grpc_port", "metrics_port", "controller_port")


def measure(settings: Settings, names: Sequence[str]) -> list[tuple[str, str]]:
    """Measure servers of one model; `names` are known models of the first, of which some are asked for."""
    with serving(settings, "--serve-known") as (ready_s, pid):
        memory = proportional_bytes(pid)
        first = first_answers(settings, names)
    with serving(settings, "--no-serve-known") as (ready_without_s, pid):
        memory_without = proportional_bytes(pid)
    return [
        ("start-up of one model, with and without all others known", f"{ready_s:.1f} s, {ready_without_s:.1f} s"),
        ("memory of that server, with and without", f"{memory / 1e6:.0f} MB, {memory_without / 1e6:.0f} MB"),
        ("first answer of a known model that nobody has named before, median", f"{statistics.median(first):.1f} s"),
    ]


@contextmanager
def serving(settings: Settings, *flags: str) -> Iterator[tuple[float, int]]:
    """Serve the demo model; yield the seconds until the server was ready, and its process."""
    given = [f"{flag(name)}={getattr(settings, name)}" for name in FLAGS]
    command = [sys.executable, "-m", "sie_triton.cli", "serve", MODEL, "--no-door", *given, *flags]
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield time.monotonic() - started, process.pid
        finally:
            process.terminate()


def first_answers(settings: Settings, names: Sequence[str]) -> list[float]:
    """Return the seconds until the first response of each model."""
    seconds = []
    controller = f"http://{settings.host}:{settings.controller_port}"
    with SIEClient(f"{settings.host}:{settings.grpc_port}", controller_url=controller) as client:
        for name in names:
            asked = time.monotonic()
            client.encode(name, "Hello, world")
            seconds.append(time.monotonic() - asked)
    return seconds


def proportional_bytes(pid: int) -> int:
    """Return the memory of a process and its children; pages that several share count in parts."""
    launcher = psutil.Process(pid)
    return sum(process.memory_full_info().pss for process in (launcher, *launcher.children(recursive=True)))
