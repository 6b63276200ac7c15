"""Measure what the queue adds to a request, and what a tenant's flood does to another tenant, on one machine.

A cluster of one worker runs here. Its gateway and its worker's Triton take turns under the same load.
"""

import json
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import tritonclient.grpc as triton
from rich.console import Console
from rich.progress import track

from benchmarks import perf_analyzer
from benchmarks.compare import MODEL
from benchmarks.perf_analyzer import input_of
from benchmarks.ports import free_ports
from benchmarks.tables import Figures, markdown_table, print_table
from benchmarks.texts import texts, write_input_data
from sie_triton.cluster.up import cluster
from sie_triton.contract.names import triton_name
from sie_triton.settings import Settings, read_settings
from sie_triton.system.host.container import num_processors

# Number of clients → address → figures of each round.
Overhead = dict[int, dict[str, list[Figures]]]

CLIENTS = (1, 16, 64)
GATEWAY, TRITON = "gateway", "Triton"

# Words in the command lines of each component's processes.
COMPONENTS = {
    "gateway": "sie_triton.cluster.gateway",
    "nats-server": "nats-server",
    "sidecar": "sie_triton.cluster.sidecar",
    "Triton": "tritonserver",
}

# Bearer tokens of two tenants: one floods, the other asks at an even rate, a share of what one client can get.
FLOODING, ASKING = "bench-flooding", "bench-asking"
NUM_FLOODING, ASKING_SHARE = 64, 0.2

NUM_TEXTS = 512

# Requests of the tenant that asks at an even rate, per round.
NUM_ASKED = 100

# Pause after a flood has begun or ended, in seconds.
SETTLE_S = 3.0

COLUMNS = ("clients", "", "requests/s", "ratio", "p50 ms", "p99 ms", *(f"{name}, CPU-ms" for name in COMPONENTS))


def run(*, rounds: int, seconds: float, output: Path | None) -> None:
    """Measure, print two tables and one line of JSON, and write `output` if given."""
    perf_analyzer.install()
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "texts.json"
        write_input_data(data, texts(NUM_TEXTS))
        with served(Path(scratch)) as addresses:
            found = overhead(addresses, data, rounds, seconds)
            interval_s = 1 / (ASKING_SHARE * median(found[1][GATEWAY], "per_second"))
            tenants = fairness(addresses[GATEWAY], data, rounds, interval_s)
    print_table("Requests of one text, medians over rounds", COLUMNS, rows := rows_of(found))
    print_table("One tenant, alone and beside another one's flood", TENANT_COLUMNS, of_tenants := tenant_rows(tenants))
    if output is not None:
        output.write_text(
            markdown(rows, of_tenants, f"scripts/bench --what cluster --rounds {rounds} --seconds {seconds:g}")
        )
    print(json.dumps({"overhead": {str(key): by for key, by in found.items()}, "tenants": tenants}))


@contextmanager
def served(scratch: Path) -> Iterator[dict[str, str]]:
    """Run a cluster of one worker; yield the gRPC addresses of its gateway and of its worker's Triton."""
    http, grpc, config = free_ports(3)
    given = {"door_port": http, "grpc_port": grpc, "config_port": config, "door_workers": 1}
    tokens = {"auth_mode": "token", "auth_tokens": f"{FLOODING},{ASKING}"}
    settings = read_settings(data_dir=scratch / "data", device="cpu", engine="torch", **given, **tokens)
    with cluster(settings, [MODEL], 1, lambda _: None) as workers:
        addresses = {GATEWAY: address_of(settings), TRITON: address_of(workers[0])}
        for each in addresses.values():
            with triton.InferenceServerClient(each) as client:
                client.infer(triton_name(MODEL), [input_of("text", ["hello"])], headers=bearer(ASKING))
        yield addresses


def address_of(settings: Settings) -> str:
    return f"{settings.inner_host}:{settings.grpc_port}"


def overhead(
    addresses: Mapping[str, str], data: Path, rounds: int, seconds: float
) -> dict[int, dict[str, list[Figures]]]:
    """Return the figures of every round, by number of clients and by address."""
    found: Overhead = {num: {name: [] for name in addresses} for num in CLIENTS}
    for _ in range(rounds):
        for num in track(CLIENTS, "queue", console=Console(stderr=True)):
            for name, address in addresses.items():
                found[num][name].append(measure(address, data, num, seconds))
    return found


def measure(address: str, data: Path, clients: int, seconds: float) -> Figures:
    """Return requests/s and latencies of a closed loop, and the CPU time of a request in ms by component."""
    used, began = cpu_s(), time.monotonic()
    figures = perf_analyzer.measure(triton_name(MODEL), address, data, clients, seconds, FLOODING)
    number = figures["per_second"] * (time.monotonic() - began)
    return {**figures, **{name: 1000 * (now - used[name]) / number for name, now in cpu_s().items()}}


def cpu_s() -> dict[str, float]:
    """Return the CPU time of each component so far, in seconds. Triton's has those of its model's processes."""
    found = dict.fromkeys(COMPONENTS, 0.0)
    for process in psutil.Process().children():
        command = " ".join(process.cmdline())
        name = next((name for name, words in COMPONENTS.items() if words in command), TRITON)
        for each in (process, *process.children(recursive=True)):
            found[name] += sum(each.cpu_times()[:2])
    return found


def fairness(address: str, data: Path, rounds: int, interval_s: float) -> dict[str, list[Figures]]:
    """Return the latencies of a tenant that asks every `interval_s` seconds, alone and beside a flood."""
    found: dict[str, list[Figures]] = {ALONE: [], FLOODED: []}
    for _ in track(range(rounds), "tenants", console=Console(stderr=True)):
        found[ALONE].append(latencies(address, NUM_ASKED, interval_s))
        with flood(address, data):
            time.sleep(SETTLE_S)
            found[FLOODED].append(latencies(address, NUM_ASKED, interval_s))
        time.sleep(SETTLE_S)
    return found


ALONE, FLOODED = "alone", f"beside {NUM_FLOODING} clients of another tenant"


@contextmanager
def flood(address: str, data: Path) -> Iterator[None]:
    process = perf_analyzer.started(
        [
            *("-m", triton_name(MODEL), "-u", address, "-i", "grpc", "--input-data", str(data)),
            *("--concurrency-range", str(NUM_FLOODING), "-p", "600000", "-H", f"authorization: Bearer {FLOODING}"),
        ]
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def latencies(address: str, number: int, interval_s: float) -> Figures:
    """Ask so many times, whether or not earlier requests are answered; return percentiles of the time in ms."""
    found: list[float] = []
    client, began = triton.InferenceServerClient(address), time.perf_counter()
    for i, text in enumerate(texts(number)):
        due = began + i * interval_s
        time.sleep(max(0.0, due - time.perf_counter()))

        def answered(result: object, error: Exception | None, due: float = due) -> None:
            found.append((time.perf_counter() - due) * 1000 if error is None else float("inf"))

        client.async_infer(triton_name(MODEL), [input_of("text", [text])], answered, headers=bearer(ASKING))
    while len(found) < number:
        time.sleep(0.01)
    client.close()
    return {"p50_ms": float(np.percentile(found, 50)), "p99_ms": float(np.percentile(found, 99))}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def rows_of(found: Overhead) -> list[list[str]]:
    rows = []
    for num, by_address in found.items():
        for name, measured in by_address.items():
            pairs = zip(measured, by_address[TRITON], strict=True)
            ratio = statistics.median(each["per_second"] / base["per_second"] for each, base in pairs)
            figures = [f"{median(measured, 'per_second'):,.0f}", f"{ratio:.2f}"]
            figures += [f"{median(measured, each):.1f}" for each in ("p50_ms", "p99_ms")]
            rows.append([str(num), name, *figures, *(f"{median(measured, each):.2f}" for each in COMPONENTS)])
    return rows


TENANT_COLUMNS = ("a fifth of one client's rate", "p50 ms", "p99 ms", "p99, ratio")


def tenant_rows(found: Mapping[str, Sequence[Figures]]) -> list[list[str]]:
    rows = []
    for name, measured in found.items():
        pairs = zip(measured, found[ALONE], strict=True)
        ratio = statistics.median(each["p99_ms"] / base["p99_ms"] for each, base in pairs)
        rows.append([name, *(f"{median(measured, each):.0f}" for each in ("p50_ms", "p99_ms")), f"{ratio:.1f}"])
    return rows


def median(measured: Sequence[Figures], name: str) -> float:
    return statistics.median(each[name] for each in measured)


def markdown(rows: Sequence[Sequence[str]], of_tenants: Sequence[Sequence[str]], command: str) -> str:
    head = (
        f"`sie-triton cluster up --workers 1` with {MODEL}, gRPC, texts of 20 to 60 words "
        f"({num_processors()} cores, {platform.machine()}, which clients and all processes share). "
        "*ratio*: median of the rounds' ratios of requests/s to Triton itself. *CPU-ms*: CPU time of a request, by "
        "component. The second table: a tenant that asks for one text at a time at an even rate. "
        f"Medians over the rounds. Printed by `{command}`."
    )
    tables = f"{markdown_table(COLUMNS, rows)}\n{markdown_table(TENANT_COLUMNS, of_tenants)}"
    return f"# The queue, measured\n\n{head}\n\n{tables}"
