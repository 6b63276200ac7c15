"""Measures one client of a whole server, if tritonserver and its other packages are installed."""

import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from time import monotonic

from benchmarks.gpu_check.scope import Finding, Plan
from benchmarks.gpu_check.served import Address, served
from benchmarks.gpu_check.shapes import save, text_of, tokens_of
from benchmarks.gpu_check.work import Library, cosine
from benchmarks.lanes import timed
from sie_triton.records.status import records_of

MODEL = "BERT-base"
ALIKE = 0.999

# Time limit for recording and measuring graphs, in seconds.
GRAPH_S = 30


def measure(plan: Plan) -> Iterator[Finding]:
    """Compare a served vector with that of transformers, and time the requests of one client."""
    with tempfile.TemporaryDirectory() as scratch:
        directory, text, data_dir = save(MODEL, plan, Path(scratch)), text_of(16), Path(scratch) / "data"
        with served(plan, [directory], data_dir) as address:
            infer = partial(address.infer, directory.name, text)
            ours = infer()
            graph_tokens = wait_for_graph(address, directory.name, text, data_dir)
            ms = 1000 * median(timed(infer) for _ in range(100))
        alike = cosine(ours[None], Library(MODEL, plan, directory, "float32").vectors([tokens_of(16)]))
    yield _fact("one client, ms", round(ms, 2))
    yield _fact("largest sub-batch by a CUDA graph, tokens", graph_tokens)
    yield _fact("cosine of a served vector and transformers'", round(alike, 5), passed=alike >= ALIKE)


def _fact(what: str, value: object, **judged: bool) -> Finding:
    return Finding("server", f"{MODEL}, {what}: {value}", {"what": what, "value": value, **judged})


def wait_for_graph(address: Address, model: str, text: str, data_dir: Path) -> int:
    """Return the largest sub-batch that runs as a CUDA graph; 0 if there is no graph after GRAPH_S."""
    ended = monotonic() + GRAPH_S
    while monotonic() < ended:
        address.infer(model, text)
        (record,) = records_of(data_dir / "status", model, "inference")
        if record["graph_tokens"]:
            return int(record["graph_tokens"])
    return 0
