"""Measure what a request costs beside the forward pass: throughput, latency and CPU time by process.

The limit is a server whose three steps compute nothing. Servers take turns, also that of an earlier commit.
"""

import json
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import tritonclient.grpc as triton
from rich.console import Console
from rich.progress import track

from benchmarks import handmade, perf_analyzer
from benchmarks.ports import ports_of_a_server
from benchmarks.tables import Figures, markdown_table, print_table
from benchmarks.texts import texts, write_input_data
from sie_triton.contract.names import triton_name
from sie_triton.server.launch import Server
from sie_triton.settings import read_settings
from sie_triton.system.host.container import num_processors

TINY, STATIC, MINILM = "bench/tiny", "bench/static", "sentence-transformers/all-MiniLM-L6-v2"
LIMIT, NOW, BEFORE = "three empty steps", "server", "server before"

# (number of clients, number of texts per request) by model
Load = tuple[int, int]
LOADS: Mapping[str, Sequence[Load]] = {
    TINY: [(1, 1), (16, 1), (64, 1), (64, 8), (4, 32), (64, 64)],
    STATIC: [(64, 1), (64, 8), (64, 64), (4, 256)],  # its pass costs nearly nothing, as on a fast device
    MINILM: [(64, 1), (4, 32)],
}
MIN_REQUESTS, MIN_TEXTS = 16, 512

PROCESSES = ("tritonserver", "preprocess", "inference", "worker", "postprocess")

Measured = dict[str, dict[Load, dict[str, list[Figures]]]]

# Serves the models until stdin is closed. Runs in another checkout too, so it uses what earlier commits have.
SERVE = """
import sys, yaml
from pathlib import Path
from benchmarks.library_comparison import dense_file, tiny_file
from benchmarks.ports import ports_of_a_server
from benchmarks.preprocess import DIM, saved
from sie_triton.client import SIEClient
from sie_triton.pipeline.render.build import write_repository
from sie_triton.server.launch import Server
from sie_triton.settings import read_settings
scratch, names = Path(sys.argv[1]), sys.argv[2:]
(scratch / "models").mkdir(parents=True)
static = dense_file(str(saved(scratch / "static")), DIM)
static["profiles"]["default"]["adapter_path"] = "static_embedding"
for name, file in zip(names, (tiny_file(scratch), static)):
    (scratch / "models" / name.replace("bench/", "")).with_suffix(".yaml").write_text(
        yaml.safe_dump({"sie_id": name, **file})
    )
settings = read_settings(
    data_dir=scratch / "data", models_dir=scratch / "models", device="cpu", engine="torch", fork_stubs=False,
    **ports_of_a_server()
)
write_repository(scratch / "repository", settings, names, runtime=settings.runtime)
with Server(settings, scratch / "repository") as server:
    server.wait_ready()
    with SIEClient(f"127.0.0.1:{settings.grpc_port}") as client:
        for name in names:
            client.encode(name, ["hello"] * 64)
    print("READY", settings.grpc_port, flush=True)
    sys.stdin.read()
"""


def run(*, rounds: int, seconds: float, before: Path | None, output: Path | None) -> None:
    """Measure, print a table and one line of JSON; write `output`, and a chart beside it, if given."""
    perf_analyzer.install()
    measured: Measured = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        root = Path(scratch)
        ports = {LIMIT: stack.enter_context(limit(root / "limit"))}
        checkouts = {NOW: Path(sys.executable), **({BEFORE: before / ".venv/bin/python"} if before else {})}
        for name, python in checkouts.items():
            ports[name] = stack.enter_context(serving(python, root / name.replace(" ", "-")))
        loads = [(model, load) for model, each in LOADS.items() for load in each]
        for _ in range(rounds):
            for model, load in track(loads, "measuring", console=Console(stderr=True)):
                for name, port in ports.items():
                    if name != LIMIT or model == TINY:
                        asked = triton_name(handmade.LIMIT if name == LIMIT else model)
                        by_load = measured.setdefault(model, {}).setdefault(load, {})
                        by_load.setdefault(name, []).append(measure(root, port, asked, load, seconds))
    rows = [
        row for model, by_load in measured.items() for load, by in by_load.items() for row in rows_of(load, by, model)
    ]
    print_table("Throughput, latency and CPU time of a request, medians over rounds", COLUMNS, rows)
    if output is not None:
        output.write_text(markdown(rows, f"scripts/bench --what overhead --rounds {rounds} --seconds {seconds:g}"))
        draw(measured[TINY], output.with_suffix(".png"))
    print(json.dumps({model: {f"{c}x{s}": by for (c, s), by in each.items()} for model, each in measured.items()}))


@contextmanager
def serving(python: Path, scratch: Path) -> Iterator[int]:
    """Start a server of the models by the interpreter of a checkout, with its code; yield its gRPC port."""
    root = python.absolute().parents[2]
    command = [str(python.absolute()), "-c", SERVE, str(scratch), *LOADS]
    log = scratch.with_suffix(".log")
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            ready = next((line for line in process.stdout if line.startswith("READY")), None)
            if ready is None:
                raise RuntimeError(f"no server was started by {python}:\n{log.read_text()[-2000:]}")
            yield int(ready.split()[1])
        finally:
            process.stdin.close()


@contextmanager
def limit(scratch: Path) -> Iterator[int]:
    """Start a server of three steps that compute nothing; yield its gRPC port."""
    settings = read_settings(data_dir=scratch / "data", device="cpu", fork_stubs=False, **ports_of_a_server())
    handmade.write_limit(scratch / "repository")
    with Server(settings, scratch / "repository") as server:
        server.wait_ready()
        yield settings.grpc_port


def measure(scratch: Path, port: int, model: str, load: Load, seconds: float) -> Figures:
    """Return requests/s and latencies of a closed loop, and the CPU time of a request in ms by process."""
    clients, size = load
    data = scratch / f"{size}.json"
    if not data.exists():
        write_input_data(data, texts(max(MIN_TEXTS, MIN_REQUESTS * size)), size=size)
    processes = processes_of(port, model)
    used, answered = {name: cpu_s(pids) for name, pids in processes.items()}, num_answered(port, model)
    figures = perf_analyzer.measure(model, f"127.0.0.1:{port}", data, clients, seconds)
    number = num_answered(port, model) - answered
    return {**figures, **{name: 1000 * (cpu_s(pids) - used[name]) / number for name, pids in processes.items()}}


def num_answered(port: int, model: str) -> int:
    with triton.InferenceServerClient(f"127.0.0.1:{port}") as client:
        (found,) = client.get_inference_statistics(model).model_stats
        return int(found.inference_stats.success.count)


def processes_of(port: int, model: str) -> dict[str, list[int]]:
    """Return the pids of tritonserver and of the model's steps and worker, by name. Stubs must not be forked."""
    sockets = [each for each in psutil.net_connections("tcp") if each.status == psutil.CONN_LISTEN and each.pid]
    server = psutil.Process(next(each.pid for each in sockets if each.laddr[1:] == (port,)))
    found = {"tritonserver": [server.pid]}
    for stub in server.children(recursive=True):
        command = " ".join(stub.cmdline())
        for stage in PROCESSES:
            if f"/{model}-{stage}/" in command:
                found.setdefault(stage, []).append(stub.pid)
                if stage == "inference":
                    programs = {each.pid: " ".join(each.cmdline()) for each in stub.children()}
                    workers = [pid for pid, program in programs.items() if "sie_triton.pipeline.worker" in program]
                    found.setdefault("worker", []).extend(workers)
    return found


def cpu_s(pids: Sequence[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


@dataclass(frozen=True, slots=True)
class Medians:
    """Medians over the rounds of one server under one load."""

    rounds: Sequence[Figures]

    def of(self, name: str) -> float:
        return statistics.median(each.get(name, 0.0) for each in self.rounds)

    @property
    def cpu_ms(self) -> float:
        return sum(map(self.of, PROCESSES))


COLUMNS = ("model", "clients x texts", "server", "requests/s", "ratio", "p50 ms", "p99 ms", "CPU-ms", *PROCESSES)


def rows_of(load: Load, by_server: Mapping[str, Sequence[Figures]], model: str) -> list[list[str]]:
    """Return a row for each server. The ratio is the median of the rounds' ratios to the first server."""
    base = next(iter(by_server.values()))
    rows = []
    for name, rounds in by_server.items():
        medians = Medians(rounds)
        ratio = statistics.median(a["per_second"] / b["per_second"] for a, b in zip(rounds, base, strict=True))
        rate = medians.of("per_second")
        numbers = [f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}", f"{ratio:.2f}"]
        numbers += [f"{medians.of(each):.1f}" for each in ("p50_ms", "p99_ms")]
        numbers += [f"{medians.cpu_ms:.2f}", *(f"{medians.of(each):.2f}" for each in PROCESSES)]
        rows.append([model.rpartition("/")[2], f"{load[0]} x {load[1]}", name, *numbers])
    return rows


def markdown(rows: Sequence[Sequence[str]], command: str) -> str:
    head = (
        f"A request over gRPC, float32, texts of 20 to 60 words ({num_processors()} cores, "
        f"{platform.machine()}, which the load generator shares). *three empty steps*: three Triton steps that compute "
        "nothing. *ratio*: median of the rounds' ratios of requests/s to the first row of the load. *CPU-ms*: CPU time "
        "of a request, and by process. *static*: a model whose pass costs nearly nothing. Servers take turns; medians "
        "over the rounds. "
        f"Printed by `{command} [--before CHECKOUT]`."
    )
    return f"# Overhead of a request\n\n{head}\n\n{markdown_table(COLUMNS, rows)}"


def draw(measured: Mapping[Load, Mapping[str, Sequence[Figures]]], path: Path) -> None:
    """Draw the CPU time of a request with one text by process, stacked, for each number of clients and server."""
    from matplotlib.figure import Figure

    bars = [
        (f"{name.replace(' ', chr(10))}\n{load[0]} client{'s' * (load[0] > 1)}", Medians(rounds))
        for load, by_server in measured.items()
        if load[1] == 1
        for name, rounds in by_server.items()
    ]
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    bottom = [0.0] * len(bars)
    for process in PROCESSES:
        heights = [medians.of(process) for _, medians in bars]
        axes.bar([label for label, _ in bars], heights, bottom=bottom, label=process)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel("CPU-ms per request of one text")
    axes.legend()
    figure.savefig(path, dpi=110)
