"""Latency of one short query by the libraries, packed and as a CUDA graph; of larger batches by the last two."""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.scope import Finding, Plan
from benchmarks.gpu_check.shapes import save
from benchmarks.gpu_check.timing import all_seconds_of
from benchmarks.gpu_check.work import QUERY_TOKENS, adapter_of, items_of, libraries, query
from benchmarks.lanes import token_batch
from sie_triton.contract import Batch
from sie_triton.engines.torch.cuda_graphs import SIZES, CapturedPasses
from sie_triton.models.families import Adapter

# Tokens of larger batches, and of each of their items.
BATCH_TOKENS, DRY_BATCH_TOKENS, ITEM_TOKENS = (256, 1024, 2048), (256,), 64


def measure(name: str, plan: Plan) -> Iterator[Finding]:
    """Report the median latency of each implementation, in milliseconds."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = save(name, plan, Path(scratch))
        adapter = adapter_of(name, plan, directory, plan.precision)
        subjects, notes = libraries(name, plan, directory, [QUERY_TOKENS])
        yield from notes
        for subject, work in subjects.items():
            yield timed(name, plan, QUERY_TOKENS, subject, work)
        for tokens in (QUERY_TOKENS, *(DRY_BATCH_TOKENS if plan.is_dry else BATCH_TOKENS)):
            batch = (
                query() if tokens == QUERY_TOKENS else token_batch(items_of([ITEM_TOKENS] * (tokens // ITEM_TOKENS)))
            )
            yield timed(name, plan, tokens, "packed", partial(adapter.forward, batch))
            yield timed(name, plan, tokens, "captured", captured(adapter, batch))


def timed(name: str, plan: Plan, tokens: int, subject: str, work: Callable[[], object]) -> Finding:
    ms = 1e3 * statistics.median(all_seconds_of(plan, work, 3 if plan.is_dry else 100))
    row = {"model": name, "tokens": tokens, "subject": subject, "ms": ms}
    return Finding("query", f"{name}, {tokens} tokens, {subject}: {ms:.2f} ms", row)


def captured(adapter: Adapter, batch: Batch) -> Callable[[], object]:
    """Return a pass of `batch` that runs as a CUDA graph."""
    encoder: Any = adapter.encoder
    graph = CapturedPasses(encoder)
    graph.serve(SIZES[-1], SIZES[-1])

    def forward() -> None:
        encoder.graph = graph
        try:
            adapter.forward(batch)
        finally:
            encoder.graph = None

    return forward
