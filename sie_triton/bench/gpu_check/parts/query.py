"""Latency of one short query: packed, as a CUDA graph, and by the libraries."""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sie_triton.bench.gpu_check.scope import Finding, Plan
from sie_triton.bench.gpu_check.shapes import save
from sie_triton.bench.gpu_check.timing import all_seconds_of
from sie_triton.bench.gpu_check.work import QUERY_TOKENS, adapter_of, libraries, query
from sie_triton.contract import Batch
from sie_triton.engines.torch.captured import SIZES, CapturedPasses
from sie_triton.families import Adapter


def measure(name: str, plan: Plan) -> Iterator[Finding]:
    """Report the median latency of each implementation, in milliseconds."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = save(name, plan, Path(scratch))
        adapter = adapter_of(name, plan, directory, plan.precision)
        subjects, notes = libraries(name, plan, directory, [QUERY_TOKENS])
        subjects |= {"packed": partial(adapter.forward, query()), "captured": captured(adapter, query())}
        yield from notes
        for subject, work in subjects.items():
            ms = 1e3 * statistics.median(all_seconds_of(plan, work, 3 if plan.is_dry else 100))
            row = {"model": name, "tokens": QUERY_TOKENS, "subject": subject, "ms": ms}
            yield Finding("query", f"{name}, one query of {QUERY_TOKENS} tokens, {subject}: {ms:.2f} ms", row)


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
