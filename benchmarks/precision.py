"""Measure MiniLM on one server for each number format that this processor computes; the servers take turns."""

import platform
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks import perf_analyzer
from benchmarks.latency import MODEL, NUM_TOKENS, closing_clients, record_of, timings, vector_request
from benchmarks.library_comparison import MINILM, dense_file, grpc_of, serving
from benchmarks.overhead import Medians, measure
from benchmarks.tables import Figures, markdown_table, print_table, rows_with_ratios
from benchmarks.texts import texts
from sie_triton.client import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.engines.torch.cpu_kernels import has_int8
from sie_triton.engines.torch.precision import INT8, computes_bfloat16
from sie_triton.settings import Settings

NUM_CLIENTS, NUM_COMPARED = 64, 256

LABELS = {
    "per_second": f"texts/s, {NUM_CLIENTS} clients of one text",
    "p50_ms": "p50, ms",
    "p99_ms": "p99, ms",
    "cpu_ms": "CPU-ms a text",
    **{f"alone_{n}": f"one client, {n} tokens, p50 in ms" for n in NUM_TOKENS},
}


def native_precisions() -> list[str]:
    """Return the formats that this CPU computes without conversion, float32 first."""
    return ["float32", *(["bfloat16"] if computes_bfloat16() else []), *([INT8] if has_int8() else [])]


def run(*, rounds: int, seconds: float, output: Path | None) -> None:
    """Measure, print the table, and write `output` if given."""
    perf_analyzer.install()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        root = Path(scratch)
        file = dense_file(MINILM, 384)
        servers = {
            name: stack.enter_context(
                serving(root / name, {MODEL: file}, engine="auto", default_compute_precision=name, fork_stubs=False)
            )
            for name in native_precisions()
        }
        vectors = {name: vectors_of(settings) for name, settings in servers.items()}
        found: dict[str, list[Figures]] = {name: [] for name in servers}
        for _ in track(range(rounds), "measuring", console=Console(stderr=True)):
            for name, settings in servers.items():
                load = measure(root, settings.grpc_port, triton_name(MODEL), (NUM_CLIENTS, 1), seconds)
                found[name].append({**load, "cpu_ms": Medians([load]).cpu_ms, **alone(settings)})
        weights = {name: record_of(settings)["weights_bytes"] for name, settings in servers.items()}
    base = vectors["float32"]
    rows = rows_with_ratios(found, LABELS)
    rows.append(["least cosine to float32", *(f"{(each * base).sum(1).min():.4f}" for each in vectors.values())])
    rows.append(["weights, MB", *(f"{int(each) / 1e6:.0f}" for each in weights.values())])
    title = f"MiniLM in each number format, texts of 20 to 60 words, medians of {rounds} rounds ({platform.machine()})"
    head = ("", *found)
    print_table(title, head, rows)
    if output is not None:
        command = f"scripts/bench --what precision --rounds {rounds} --seconds {seconds:g}"
        note = f"In brackets the median of the rounds' ratios to float32. Cosine: {NUM_COMPARED} texts. "
        output.write_text(f"{title}. {note}Printed by `{command}`.\n\n{markdown_table(head, rows)}")


def vectors_of(settings: Settings) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Load the model; return the vectors, of length 1, of NUM_COMPARED texts."""
    with SIEClient(grpc_of(settings)) as client:
        return np.stack([each["dense"] for each in client.encode(MODEL, texts(NUM_COMPARED))])


def alone(settings: Settings) -> Figures:
    """Return the median milliseconds of one client's calls, by number of tokens."""
    with closing_clients(settings) as (client,):
        return {f"alone_{n}": statistics.median(timings(vector_request(client, n), 0)) for n in NUM_TOKENS}
