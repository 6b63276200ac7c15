"""Compare the door with Triton's own HTTP: added latency, throughput with many clients, and the door's CPU time.

All clients are connections of one event loop that send prepared bytes, so that they take little of the processors.
"""

import asyncio
import itertools
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

from benchmarks.compare import MODEL
from benchmarks.library_comparison import MINILM, dense_file, serving, tiny_file
from benchmarks.preprocess import static_file
from benchmarks.tables import markdown_table, print_table
from benchmarks.texts import texts
from sie_triton.contract.names import triton_name
from sie_triton.server.companions import doors, wait_for_door
from sie_triton.settings import Settings
from sie_triton.system.host.container import num_processors

TINY, STATIC = "bench/tiny", "bench/static"

DOOR, TRITON = "the door, JSON", "Triton's HTTP, JSON"

NUM_TEXTS = 128

COLUMNS = ("", "1 client, p50 ms", "clients", "requests/s", "the door's CPU-ms per request")


def run(*, rounds: int, seconds: float, clients: int, output: Path | None) -> None:
    """Measure, print a table and one line of JSON, and write `output` if given."""
    with tempfile.TemporaryDirectory() as scratch, served(Path(scratch)) as (settings, pid):
        found = {name: measure(settings, pid, name, rounds, seconds, clients) for name in (MODEL, TINY, STATIC)}
    rows = [row for model, measured in found.items() for row in rows_of(model, measured, clients)]
    print_table("One text per request, medians over rounds", COLUMNS, rows)
    if output is not None:
        command = f"scripts/bench --what door --rounds {rounds} --seconds {seconds:g} --clients {clients}"
        output.write_text(markdown(rows, command))
    print(json.dumps({"clients": clients, **{model: summary(measured) for model, measured in found.items()}}))


@contextmanager
def served(scratch: Path) -> Iterator[tuple[Settings, int]]:
    """Start a server of the models; yield its settings and the pid of its door."""
    files = {MODEL: dense_file(MINILM, 384), TINY: tiny_file(scratch), STATIC: static_file(scratch / "static")}
    with serving(scratch, files) as settings, doors(settings, {}) as processes:
        wait_for_door(settings)
        yield settings, processes[0].pid


def measure(
    settings: Settings, pid: int, model: str, rounds: int, seconds: float, clients: int
) -> dict[str, dict[str, list[float]]]:
    """Return for each way, per round: `ms` of one client, `rate` of many, and the door's `cpu_ms` per request."""
    found: dict[str, dict[str, list[float]]] = {}
    ways = {
        DOOR: (settings.door_port, f"/v1/encode/{model}", door_body),
        TRITON: (settings.http_port, f"/v2/models/{triton_name(model)}/infer", triton_body),
    }
    for way in ways.values():
        loaded(*way, clients, 1.0)
    for _ in range(rounds):
        for name, way in ways.items():
            figures = found.setdefault(name, {"ms": [], "rate": [], "cpu_ms": []})
            figures["ms"].append(1000 * statistics.median(loaded(*way, 1, seconds)))
            before, started = cpu_s(pid), time.perf_counter()
            number = len(loaded(*way, clients, seconds))
            figures["rate"].append(number / (time.perf_counter() - started))
            figures["cpu_ms"].append((cpu_s(pid) - before) * 1000 / number)
    return found


def door_body(text: str) -> object:
    return {"items": [{"text": text}]}


def triton_body(text: str) -> object:
    return {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}]}


def loaded(port: int, path: str, body: Callable[[str], object], clients: int, seconds: float) -> list[float]:
    """Send requests from so many clients; return the latency of each, in seconds."""

    async def load() -> list[float]:
        found: list[float] = []
        own = [[posted(path, body(text)) for text in texts(NUM_TEXTS, seed=number)] for number in range(clients)]
        ends_at, loop = time.perf_counter() + seconds, asyncio.get_running_loop()
        made = [await loop.create_connection(partial(Client, each, ends_at, found), "127.0.0.1", port) for each in own]
        await asyncio.gather(*(client.is_over for _, client in made))
        return found

    return asyncio.run(load())


def posted(path: str, body: object) -> bytes:
    content = json.dumps(body).encode()
    headers = "Content-Type: application/json\r\nAccept: application/json"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\nContent-Length: {len(content)}\r\n\r\n"
    return head.encode() + content


class Client(asyncio.Protocol):
    """A client that sends `requests` in turn, each after the response to the one before; `latencies` gets theirs."""

    def __init__(self, requests: Sequence[bytes], ends_at: float, latencies: list[float]) -> None:
        self._requests, self._ends_at, self._latencies = itertools.cycle(requests), ends_at, latencies
        self.is_over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, content = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if not head.startswith(b"HTTP/1.1 200"):
            self._fail(RuntimeError(f"{head!r} {content[:200]!r}"))
        elif len(content) >= size:
            self._latencies.append(time.perf_counter() - self._sent_at)
            self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or RuntimeError("the server closed the connection"))

    def _send(self) -> None:
        self._received, self._sent_at = b"", time.perf_counter()
        if self._sent_at < self._ends_at:
            self._transport.write(next(self._requests))
        else:
            self.is_over.set_result(None)
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        if not self.is_over.done():
            self.is_over.set_exception(error)


def cpu_s(pid: int) -> float:
    return sum(psutil.Process(pid).cpu_times()[:2])


def rows_of(model: str, measured: Mapping[str, Mapping[str, list[float]]], clients: int) -> list[list[str]]:
    rows = []
    for way, figures in measured.items():
        ms, rate, cpu_ms = (statistics.median(figures[name]) for name in ("ms", "rate", "cpu_ms"))
        name = f"{model.rpartition('/')[2]}, {way}"
        rows.append([name, f"{ms:.2f}", str(clients), f"{rate:.0f}", f"{cpu_ms:.2f}" if way == DOOR else ""])
    return rows


def summary(measured: Mapping[str, Mapping[str, list[float]]]) -> dict[str, float]:
    """Compare the door with Triton's own HTTP, round by round; return the medians."""
    door, triton = measured[DOOR], measured[TRITON]
    added = [a - b for a, b in zip(door["ms"], triton["ms"], strict=True)]
    ratio = [a / b for a, b in zip(door["rate"], triton["rate"], strict=True)]
    figures = {"added_ms": added, "throughput_ratio": ratio, "door_cpu_ms": door["cpu_ms"]}
    return {name: round(statistics.median(each), 3) for name, each in figures.items()}


def markdown(rows: Sequence[Sequence[str]], command: str) -> str:
    head = f"The door beside Triton's own HTTP, one text per request ({platform.machine()}, {num_processors()} cores)."
    return f"{head} Printed by `{command}`.\n\n{markdown_table(COLUMNS, rows)}"
