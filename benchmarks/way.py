"""Trace the way of one text through the three stages: the files, functions and calls of this package on it.

The worker is a double that computes nothing, and Triton's part is left out. The first request of each stage, which
loads and imports, is not traced.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from benchmarks.architectures import save
from benchmarks.library_comparison import MINILM
from benchmarks.tables import markdown_table, print_table
from sie_triton.contract import Batch, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import TEXT
from sie_triton.errors import SIEError
from sie_triton.models.weights import locate
from sie_triton.pipeline.stages.inference import Inference
from sie_triton.pipeline.stages.message import Seal
from sie_triton.pipeline.stages.postprocess import Postprocess
from sie_triton.pipeline.stages.preprocess import Preprocess
from sie_triton.pipeline.stages.request import Outputs
from sie_triton.pipeline.worker.messages import Loaded
from sie_triton.records.status import StatusWriter
from sie_triton.records.traffic import TrafficWriter

PACKAGE = str(Path(sys.modules["sie_triton"].__path__[0]).resolve())

COLUMNS = ("stage", "files", "functions", "calls", "changes of file", "of these to a file left before")

DIM, MAX_LENGTH = 64, 64


def run(*, output: Path | None) -> None:
    """Trace one text, print a table and one line of JSON, and write `output` if given."""
    with tempfile.TemporaryDirectory() as scratch:
        traces = traced(Path(scratch))
    rows = [[name, *map(str, trace.figures())] for name, trace in [*traces.items(), ("together", merged(traces))]]
    print_table("The way of one text", COLUMNS, rows)
    if output is not None:
        output.write_text(f"# The way of one text\n\n{(__doc__ or '').strip()}\n\n{markdown_table(COLUMNS, rows)}")
    print(json.dumps({row[0]: row[1:] for row in rows}))


@dataclass
class Trace:
    """Calls of functions of this package in their order, as a path and a name."""

    calls: list[tuple[str, str]] = field(default_factory=list)
    changes: int = 0
    returns: int = 0

    def figures(self) -> Sequence[int]:
        return (len({path for path, _ in self.calls}), len({*self.calls}), len(self.calls), self.changes, self.returns)

    def of(self, act: Callable[[], Any]) -> Any:
        """Do something, and add its calls."""
        seen: set[str] = set()
        now = ""

        def add(frame: FrameType, event: str, _: object) -> None:
            nonlocal now
            path = frame.f_code.co_filename
            if event == "call" and path.startswith(PACKAGE):
                self.calls.append((path, frame.f_code.co_qualname))
                if path != now:
                    self.changes += bool(now)
                    self.returns += path in seen
                    seen.add(path)
                    now = path

        sys.setprofile(add)
        try:
            return act()
        finally:
            sys.setprofile(None)


def merged(traces: Mapping[str, Trace]) -> Trace:
    every = [*traces.values()]
    calls = [call for trace in every for call in trace.calls]
    return Trace(calls, sum(trace.changes for trace in every), sum(trace.returns for trace in every))


def traced(scratch: Path) -> dict[str, Trace]:
    """Return the trace of one text in each stage."""
    spec = ModelSpec(
        model="bench/way",
        weights=str(save("BERT", scratch / "model", locate(MINILM, allow_hub=False), layers=2)),
        family="sentence_transformer",
        dims={"dense": DIM},
        max_sequence_length=MAX_LENGTH,
        max_batch_cost=1000,
    )
    found = {name: Trace() for name in ("preprocess", "inference", "postprocess")}
    preprocess = Preprocess(spec, StatusWriter(scratch, "m", "preprocess", 0))
    inference = WithoutWorker(spec, "cpu", StatusWriter(scratch, "m", "inference", 0))
    postprocess = Postprocess(spec, Seal(scratch), TrafficWriter.private())
    stages: Sequence[Any] = (preprocess, inference, postprocess)
    try:
        for stage in stages[:2]:
            stage.warm_up()
        for _ in range(2):
            outputs: Outputs = {f"encode_{TEXT.name}": np.array([b"how do vines climb?"], object)}
            for stage in stages:
                found[stage.name] = trace = Trace()
                (outputs,) = trace.of(partial(stage.execute, [Asked(outputs)]))
                if isinstance(outputs, SIEError):
                    raise outputs
    finally:
        for stage in stages:
            stage.close()
    return found


class Asked:
    """A request in memory, as stages see it."""

    id, timeout_us, is_deferred = "", 0, False
    parameters: Mapping[str, Any] = {}

    def __init__(self, tensors: Outputs) -> None:
        self._tensors = tensors
        self.arrived_ns = time.monotonic_ns()

    def tensor(self, name: str) -> Any:
        return self._tensors[name][None] if name in self._tensors else None

    def defer(self) -> None:
        raise AssertionError("the text is answered at once")

    def reply(self, answer: Outputs | SIEError) -> None:
        raise AssertionError("the text is answered at once")

    def is_cancelled(self) -> bool:
        return False


class Double:
    """A worker whose passes take no time."""

    is_alive = True
    loaded = Loaded({}, MAX_LENGTH, 0, 0)

    def forward(self, batch: Batch, threads: int) -> Rows:
        return {"dense": np.ones((len(batch.is_query), DIM), np.float32)}

    def close(self) -> None:
        pass


class WithoutWorker(Inference):
    """Inference with a double for its worker."""

    def load(self) -> Any:
        return Double()
