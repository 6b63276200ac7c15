"""Compare the server with sentence-transformers in this process: throughput of many clients, latency of one."""

import json
import platform
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks import perf_analyzer
from benchmarks.lanes import Lanes, median_ratio, timed
from benchmarks.library_comparison import MINILM, dense_file, grpc_of, serving
from benchmarks.tables import markdown_table, print_table
from benchmarks.texts import texts, write_input_data
from sie_triton.client import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.weights import locate
from sie_triton.system.host.container import num_processors

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
NUM_TEXTS, NUM_SINGLES = 512, 100
HEAD = ("measured in one run", "median")


def run(*, rounds: int, seconds: float, clients: int, output: Path | None) -> None:
    """Measure, print the table and a line of JSON, and write `output` if given."""
    perf_analyzer.install()
    with tempfile.TemporaryDirectory() as scratch:
        measured = measure(Path(scratch), rounds, seconds, clients)
    server, library, *_ = measured.values()
    rows = [(name, f"{statistics.median(each):.1f}") for name, each in measured.items()]
    rows.append(("median of the first two rows' ratios", f"{median_ratio(server, library):.2f} ×"))
    title = f"{MODEL}, fp32, texts of 20 to 60 words, medians of {rounds} interleaved rounds"
    print_table(title, HEAD, rows)
    if output is not None:
        command = f"scripts/bench --rounds {rounds} --seconds {seconds:g} --clients {clients}"
        machine = f"{num_processors()} cores, {platform.machine()}, which client and server share"
        output.write_text(f"{title} ({machine}). Printed by `{command}`.\n\n{markdown_table(HEAD, rows)}")
    print(json.dumps(dict(rows)))


def measure(scratch: Path, rounds: int, seconds: float, clients: int) -> dict[str, list[float]]:
    """Return the figures of each round, in the order in which they were taken, the server's throughput first."""
    from sentence_transformers import SentenceTransformer

    items, directory = texts(NUM_TEXTS), locate(MINILM, allow_hub=False)
    write_input_data(scratch / "input.json", items)
    library = SentenceTransformer(str(directory), device="cpu")
    lanes = Lanes(ModelSpec(MODEL, MINILM, "sentence_transformer", {"dense": 384}, 256, 16384), directory)
    for warm_up in (library.encode, lanes.dense):
        warm_up(items[:64])

    def per_second(work: Callable[[list[str]], object]) -> float:
        return NUM_TEXTS / timed(partial(work, items))

    def forward_ms() -> float:
        return 1000 * statistics.median(timed(partial(lanes.dense, [item])) for item in items[:NUM_SINGLES])

    with serving(scratch, {MODEL: dense_file(MINILM, 384)}) as settings:
        with SIEClient(grpc_of(settings)) as client:
            client.encode(MODEL, items[:64])
        load = partial(perf_analyzer.measure, triton_name(MODEL), grpc_of(settings), scratch / "input.json")
        figures: dict[str, Callable[[], float]] = {
            f"server, {clients} clients, one text a request, texts/s": lambda: load(clients, seconds)["per_second"],
            "sentence-transformers in process, length-sorted, texts/s": partial(per_second, library.encode),
            "our packed forward in process, texts/s": partial(per_second, lanes.dense),
            "server, 1 client, p50 ms": lambda: load(1, 3)["p50_ms"],
            "in-process forward of one text, p50 ms": forward_ms,
        }
        measured: dict[str, list[float]] = {name: [] for name in figures}
        for _ in track(range(rounds), "measuring", console=Console(stderr=True)):
            for name, figure in figures.items():
                measured[name].append(figure())
    lanes.close()
    return measured
