"""The in-process side of the comparison, in a separate process that is idle while the server works.

Reads one command per line from stdin, and answers each with a JSON number: the matrix-product peak in GFLOP/s,
sentence-transformers in texts/s, our packed forward pass in texts/s, and its latency for one text in ms.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

COMMANDS = ("peak", "sentence_transformers", "packed", "forward_ms")


class Reference:
    """Handle of the process; `measure("peak")` blocks until the measurement is done."""

    def __init__(self, model: str, texts_file: Path) -> None:
        command = [sys.executable, "-m", __name__, model, str(texts_file)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def measure(self, command: str) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def main(model: str, texts_file: str) -> None:
    """Serve measurements until stdin closes."""
    texts = json.loads(Path(texts_file).read_text())
    measurements = dict(zip(COMMANDS, _measurements(model, texts), strict=True))
    for line in sys.stdin:
        print(measurements[line.strip()](), flush=True)


def _measurements(model: str, texts: list[str]) -> list[Callable[[], float]]:
    import torch
    from sentence_transformers import SentenceTransformer

    from sie_triton.contract.spec import Runtime
    from sie_triton.models.catalog import select
    from sie_triton.models.weights import locate

    spec = select([model], None, allow_hub=True).models[0].resolve(Runtime())
    directory = locate(spec.weights, allow_hub=True)
    ours = _Packed(spec, directory, texts)
    library = SentenceTransformer(str(directory), device="cpu")
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)

    def peak() -> float:
        rates = [2 * 1024**3 / _seconds(lambda: left @ right) / 1e9 for _ in range(200)]
        return statistics.median(rates)

    def per_second(work: Callable[[], Any]) -> Callable[[], float]:
        return lambda: len(texts) / _seconds(work)

    for warm_up in (lambda: library.encode(texts[:64]), ours.all):
        warm_up()
    return [peak, per_second(lambda: library.encode(texts)), per_second(ours.all), ours.forward_ms]


class _Packed:
    """Our forward pass for dense vectors, tokenizing included."""

    def __init__(self, spec: Any, directory: Path, texts: list[str]) -> None:
        from sie_triton.engines import open_engine
        from sie_triton.engines.measurements import Measurements
        from sie_triton.models.families import load_adapter
        from sie_triton.models.inputs.tokenizer import TextTokenizer

        self._texts = texts
        self._adapter = load_adapter(spec, directory, open_engine(spec, "cpu", Measurements()))
        self._tokenizer = TextTokenizer.load(directory, spec.max_sequence_length)

    def all(self) -> None:
        from sie_triton.contract.spec import CPU_ADMISSION_COST
        from sie_triton.pipeline.scheduling import plan

        items = self._items(self._texts)
        for chosen in plan([len(item) for item in items], CPU_ADMISSION_COST):
            self._forward([items[i] for i in chosen])

    def forward_ms(self) -> float:
        """Return the median latency of single texts, in ms."""
        items = self._items(self._texts[:100])
        return 1000 * statistics.median(_seconds(partial(self._forward, [item])) for item in items)

    def _items(self, texts: list[str]) -> list[Any]:
        import numpy as np

        from sie_triton.contract.tensors import INPUT_IDS

        input_ids, lengths = self._tokenizer.encode(texts)[INPUT_IDS.name]
        assert lengths is not None
        return np.split(input_ids, np.cumsum(lengths)[:-1])

    def _forward(self, items: list[Any]) -> None:
        from benchmarks.lanes import token_batch

        self._adapter.forward(token_batch(items))


def _seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main(*sys.argv[1:])
