"""Measure a request and its response between two processes: our channel beside multiprocessing's connection.

`python -m benchmarks.channel` prints milliseconds: minimum and median, over 5 interleaved rounds, of a round's
median.
"""

import os
import socket
import statistics
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from sie_triton.system.processes.channel import Channel

ROUNDS = 5
SMALL = {f"feature-{i}": np.arange(100, dtype=np.int32) for i in range(64)}
MULTIVECTOR = {"multivector": np.random.default_rng(0).random((16384, 128), np.float32)}

# (request, response, number of round trips)
CASES: dict[str, tuple[Any, Any, int]] = {
    "8 MB multivector received": ("forward", MULTIVECTOR, 60),
    "64 int32 arrays of 100 sent": (SMALL, "done", 2000),
    "almost nothing": ("forward", "done", 2000),
    **{f"{size} KB received": ("forward", np.zeros(size * 1024, np.uint8), 500) for size in (16, 32, 64, 256)},
}

Kind = type[Channel[Any, Any]] | type[Connection]


def end_of(kind: Kind, end: socket.socket) -> Any:
    return Connection(end.detach()) if kind is Connection else Channel[Any, Any](end)


def round_of(kind: Kind, question: object, answer: object, count: int) -> float:
    """Return the median of `count` round trips to another process, in ms."""
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        here.close()
        serve(end_of(kind, there), answer)
    there.close()
    channel, taken = end_of(kind, here), []
    for _ in range(count):
        started = time.perf_counter()
        channel.send(question)
        channel.poll(60)
        channel.recv()
        taken.append(time.perf_counter() - started)
    channel.close()
    os.waitpid(pid, 0)
    return 1000 * statistics.median(taken)


def serve(end: Any, answer: object) -> None:
    with suppress(EOFError, OSError):
        while True:
            end.recv()
            end.send(answer)
    os._exit(0)


def main() -> None:
    for name, case in CASES.items():
        rounds = [(round_of(Connection, *case), round_of(Channel, *case)) for _ in range(ROUNDS)]
        texts = [f"{min(taken):.3f} {statistics.median(taken):.3f}" for taken in zip(*rounds, strict=True)]
        print(f"{name:30} connection {texts[0]}   channel {texts[1]}")


if __name__ == "__main__":
    main()
