"""Measure large requests: one client with many texts a request, beside sentence-transformers in this process."""

import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.lanes import interleaved
from benchmarks.library_comparison import MINILM, dense_file, report, served, tiny_file
from benchmarks.texts import texts
from sie_triton.client import SIEClient
from sie_triton.models.weights import locate

MODELS = ("all-MiniLM-L6-v2", "two layers of 64")
SIZES = (32, 256)
NUM_TEXTS = 512


def run(*, rounds: int, output: Path | None) -> None:
    """Measure, print a table for each model and size, and write `output` if given."""
    command = f"scripts/bench --what large --rounds {rounds}"
    with tempfile.TemporaryDirectory() as scratch:
        models = zip((Path(scratch) / "minilm", Path(scratch) / "tiny"), MODELS, strict=True)
        told = [table for directory, name in models for table in tables(directory, name, rounds, command)]
    if output is not None:
        output.write_text("\n".join(told))


def tables(scratch: Path, name: str, rounds: int, command: str) -> Iterator[str]:
    from sentence_transformers import SentenceTransformer

    scratch.mkdir()
    items, model = texts(NUM_TEXTS), "bench/model"
    file: Mapping[str, Any] = dense_file(MINILM, 384) if name == MODELS[0] else tiny_file(scratch)
    library = SentenceTransformer(str(locate(file["weights_path"], allow_hub=False)), device="cpu")
    with served(scratch, model, file) as client:
        for size in SIZES:
            ways = {
                f"server, one client, {size} texts a request": partial(in_turn, client, model, items, size),
                f"sentence-transformers in process, batches of {size}": partial(library.encode, items, batch_size=size),
            }
            title = f"{name}, fp32, {size} texts of 20 to 60 words a request, medians of {rounds} rounds"
            yield report(title, "texts/s", interleaved(ways, NUM_TEXTS, rounds), command)


def in_turn(client: SIEClient, model: str, items: list[str], size: int) -> None:
    for start in range(0, len(items), size):
        client.encode(model, items[start : start + size])
