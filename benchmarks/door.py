"""Compare the door with Triton's own HTTP: added latency, throughput with many clients, and the door's CPU time."""

import http.client
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import local

import psutil
import yaml

from benchmarks.compare import MODEL
from benchmarks.library_comparison import tiny_file
from benchmarks.ports import ports_of_a_server
from benchmarks.tables import markdown_table, print_table
from sie_triton.client import SIEClient
from sie_triton.names import triton_name
from sie_triton.perf.workload import texts
from sie_triton.render.build import write_repository
from sie_triton.server.companions import doors, wait_for_door
from sie_triton.server.launch import Server
from sie_triton.settings import Settings, read_settings

TINY = "bench/tiny"

DOOR, TRITON, CLIENT = "the door, JSON", "Triton's HTTP, JSON", "SIEClient over HTTP"

NUM_TEXTS = 512

Ask = Callable[[str], object]


def run(*, rounds: int, seconds: float, clients: int, output: Path | None) -> None:
    """Measure, print a table and one line of JSON, and write `output` if given."""
    with tempfile.TemporaryDirectory() as scratch, served(Path(scratch)) as (settings, pid):
        found = {model: measure(settings, pid, model, rounds, seconds, clients) for model in (MODEL, TINY)}
    rows = [row for model, measured in found.items() for row in rows_of(model, measured, clients)]
    print_table("One text per request, medians over rounds", COLUMNS, rows)
    if output is not None:
        command = f"scripts/bench --what door --rounds {rounds} --seconds {seconds:g} --clients {clients}"
        output.write_text(markdown(rows, command))
    print(json.dumps({"clients": clients, **{model: summary(measured) for model, measured in found.items()}}))


COLUMNS = ("", "1 client, p50 ms", "clients", "requests/s", "the door's CPU-ms per request")


@contextmanager
def served(scratch: Path) -> Iterator[tuple[Settings, int]]:
    """Start a server of both models; yield its settings and the pid of its door."""
    models = scratch / "models"
    models.mkdir()
    (models / "tiny.yaml").write_text(yaml.safe_dump({"sie_id": TINY, **tiny_file(scratch)}))
    settings = read_settings(
        data_dir=scratch / "data", models_dir=models, device="cpu", engine="torch", **ports_of_a_server()
    )
    write_repository(scratch / "repository", settings, [MODEL, TINY], runtime=settings.runtime)
    with Server(settings, scratch / "repository") as server, doors(settings, {}) as processes:
        server.wait_ready()
        wait_for_door(settings)
        yield settings, processes[0].pid


def measure(
    settings: Settings, pid: int, model: str, rounds: int, seconds: float, clients: int
) -> dict[str, dict[str, list[float]]]:
    """Return for each way, per round: `ms` of one client, `rate` of many, and the door's `cpu_ms` per request."""
    found: dict[str, dict[str, list[float]]] = {}
    with SIEClient(f"http://{settings.host}:{settings.http_port}") as client:
        ways = {
            DOOR: posting(settings.host, settings.door_port, f"/v1/encode/{model}", door_body),
            TRITON: posting(settings.host, settings.http_port, f"/v2/models/{triton_name(model)}/infer", triton_body),
            CLIENT: lambda text: client.encode(model, text),
        }
        for ask in ways.values():
            loaded(ask, 1.0, clients)
        for _ in range(rounds):
            for name, ask in ways.items():
                figures = found.setdefault(name, {"ms": [], "rate": [], "cpu_ms": []})
                figures["ms"].append(statistics.median(latencies(ask, seconds)))
                before = cpu_s(pid)
                number, lasted_s = loaded(ask, seconds, clients)
                figures["rate"].append(number / lasted_s)
                figures["cpu_ms"].append((cpu_s(pid) - before) * 1000 / number)
    return found


def posting(host: str, port: int, path: str, body: Callable[[str], object]) -> Ask:
    """Return a function that posts a text; each thread that calls it keeps its own connection."""
    own = local()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}

    def ask(text: str) -> None:
        if not hasattr(own, "connection"):
            own.connection = http.client.HTTPConnection(host, port)
        own.connection.request("POST", path, json.dumps(body(text)), headers)
        answer = own.connection.getresponse()
        told = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {told[:200]!r}")
        json.loads(told)

    return ask


def door_body(text: str) -> object:
    return {"items": [{"text": text}]}


def triton_body(text: str) -> object:
    return {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}]}


def latencies(ask: Ask, seconds: float) -> list[float]:
    """Return the latencies of one client's requests, in ms."""
    found: list[float] = []
    end = time.perf_counter() + seconds
    for text in itertools.cycle(texts(NUM_TEXTS)):
        asked = time.perf_counter()
        ask(text)
        answered = time.perf_counter()
        found.append((answered - asked) * 1000)
        if answered > end:
            return found
    raise AssertionError("a cycle has no end")


def loaded(ask: Ask, seconds: float, clients: int) -> tuple[int, float]:
    """Send requests from `clients` threads; return the number of responses, and the seconds that they took."""
    started = time.perf_counter()

    def go(number: int) -> int:
        mine = itertools.cycle(texts(NUM_TEXTS, seed=number))
        count = 0
        while time.perf_counter() < started + seconds:
            ask(next(mine))
            count += 1
        return count

    with ThreadPoolExecutor(clients) as pool:
        total = sum(pool.map(go, range(clients)))
    return total, time.perf_counter() - started


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
    head = f"The door beside Triton's own HTTP, one text per request ({platform.machine()}, {os.cpu_count()} cores)."
    return f"{head} Printed by `{command}`.\n\n{markdown_table(COLUMNS, rows)}"
