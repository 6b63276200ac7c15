"""One model as inference loads and runs it, beside the libraries as they are: memory, tokens per second, one query."""

import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from sie_triton.bench.gpu_check.accounts import account
from sie_triton.bench.gpu_check.hardware import finished, peak
from sie_triton.bench.gpu_check.scope import Finding, Plan
from sie_triton.bench.gpu_check.shapes import config_of, flops, save
from sie_triton.bench.lanes import interleaved, timed, token_batch
from sie_triton.contract import Batch
from sie_triton.engines.torch.captured import SIZES, CapturedPasses
from sie_triton.engines.torch.encoder import PACKED, PADDED
from sie_triton.families import Adapter
from sie_triton.scheduling import plan as cut
from sie_triton.spec import ModelSpec, Runtime
from sie_triton.worker.__main__ import load
from sie_triton.worker.messages import Load, Loaded

MAX_LENGTH = 512
LIBRARY_BATCH = 32  # sentence-transformers' own
QUERY_TOKENS = 16


def measure(name: str, plan: Plan) -> Iterator[Finding]:
    """Memory after loading, one short query, and tokens/s of texts of one length and of many."""
    with tempfile.TemporaryDirectory() as scratch:
        directory = save(name, plan, Path(scratch))
        order = order_of(name, plan, directory)
        before = account(plan)
        _, adapter, loaded = load(order)
        yield memory(name, plan, before, loaded)
        library = Library(plan, directory)
        yield latency(name, plan, adapter, library)
        for kind, lengths in workloads(plan).items():
            yield throughput(name, plan, kind, lengths, adapter, library, loaded.sub_batch_cost)


def order_of(name: str, plan: Plan, directory: Path) -> Load:
    """What a stage would ask of its worker."""
    limit = 1024 if plan.is_dry else 65536
    config = config_of(name, plan)
    spec = ModelSpec(name, "", "sentence_transformer", {"dense": config.hidden_size}, MAX_LENGTH, limit)
    spec = replace(spec, runtime=Runtime(device=plan.device, precision=plan.precision))
    return Load(spec.to_json(), directory, plan.device, directory / "measured", directory / "lock", 1, 1)


def memory(name: str, plan: Plan, before: dict[str, int], loaded: Loaded) -> Finding:
    """What the worker reports of itself beside what PyTorch and the driver say."""
    entry: dict[str, Any] = {"model": name, "weights_bytes": loaded.weights_bytes, "device_bytes": loaded.device_bytes}
    entry |= {"before": before, "after": account(plan), "seconds": dict(loaded.seconds)}
    return "memory", f"{name}: loaded, weights {loaded.weights_bytes / 1e6:.0f} MB", entry


class Library:
    """The same model by transformers and by sentence-transformers, as they are."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        from sentence_transformers import SentenceTransformer

        dtype = getattr(torch, plan.precision)
        sentences = SentenceTransformer(str(directory), device=plan.device, model_kwargs={"dtype": dtype})
        self._plan, self._sentences = plan, sentences
        model: Any = transformers.AutoModel.from_pretrained(directory, dtype=dtype)
        self._model = model.to(plan.device).eval()

    def encode(self, texts: list[str]) -> Any:
        return self._sentences.encode(texts, batch_size=LIBRARY_BATCH)

    @torch.inference_mode()
    def forward(self, items: Sequence[Any]) -> None:
        """Items in the order given, padded to the longest of each batch."""
        for start in range(0, len(items), LIBRARY_BATCH):
            batch = items[start : start + LIBRARY_BATCH]
            columns = np.arange(max(map(len, batch)))
            mask = columns < np.array([len(item) for item in batch])[:, None]
            input_ids = np.zeros(mask.shape, np.int64)
            input_ids[mask] = np.concatenate(batch)
            tensors = (torch.from_numpy(x).to(self._plan.device) for x in (input_ids, mask.astype(np.int64)))
            self._model(*tensors).last_hidden_state[:, 0].float().cpu()


def latency(name: str, plan: Plan, adapter: Adapter, library: Library) -> Finding:
    """One short query, over and over: the median in ms."""
    item = np.full(QUERY_TOKENS, 1000, np.int32)
    text = text_of(QUERY_TOKENS)
    subjects: dict[str, Callable[[], Any]] = {
        "ours": partial(adapter.forward, token_batch([item])),
        "ours, captured": recorded(adapter, token_batch([item])),
        "transformers": partial(library.forward, [item]),
        "sentence-transformers, with its tokenizer": partial(library.encode, [text]),
    }
    entry: dict[str, Any] = {"model": name, "tokens": QUERY_TOKENS}
    for subject, work in subjects.items():
        seconds = [timed(finished(plan, work)) for _ in range(5 if plan.is_dry else 105)][5 - 4 * plan.is_dry :]
        entry[subject] = 1000 * statistics.median(seconds)
    told = f"{entry['ours']:.2f} ms, captured {entry['ours, captured']:.2f}"
    return "latency", f"{name}: one query of {QUERY_TOKENS} tokens {told}", entry


def recorded(adapter: Adapter, batch: Batch) -> Callable[[], Any]:
    """The pass of `batch` by a CUDA graph."""
    encoder: Any = adapter.encoder
    graph = CapturedPasses(encoder)
    graph.serve(SIZES[-1], SIZES[-1])

    def forward() -> None:
        encoder.graph = graph
        adapter.forward(batch)
        encoder.graph = None

    return forward


def workloads(plan: Plan) -> dict[str, list[int]]:
    """Lengths of items with [CLS] and [SEP]: all 512, and as texts are, few of them long."""
    count = 4 if plan.is_dry else 256
    varied = np.random.default_rng(0).lognormal(np.log(100), 0.9, count)
    return {"512 tokens": [MAX_LENGTH] * count, "5 to 512 tokens": np.clip(varied, 5, MAX_LENGTH).astype(int).tolist()}


def throughput(
    name: str, plan: Plan, kind: str, lengths: list[int], adapter: Adapter, library: Library, budget: int
) -> Finding:
    """Tokens/s of each way, round by round in turns, and its share of the matrix products' peak."""
    items = [np.random.default_rng(n).integers(1000, 20000, n, dtype=np.int32) for n in lengths]
    batches = [token_batch([items[i] for i in each]) for each in cut(lengths, budget)]
    texts = list(map(text_of, lengths))
    subjects: dict[str, Callable[[], Any]] = {
        "packed": partial(ours, adapter, PACKED, batches),
        "padded": partial(ours, adapter, PADDED, batches),
        "transformers": partial(library.forward, items),
        "sentence-transformers": partial(library.encode, texts),
    }
    peaks = [peak(plan)]
    waited = {subject: finished(plan, work) for subject, work in subjects.items()}
    rates = interleaved(waited, sum(lengths), 1 if plan.is_dry else 5)
    peaks.append(peak(plan))
    tokens_per_s = {subject: statistics.median(each) for subject, each in rates.items()}
    per_token = flops(name, plan, lengths) / sum(lengths)
    shares = {subject: rate * per_token / statistics.mean(peaks) for subject, rate in tokens_per_s.items()}
    entry = {"model": name, "lengths": kind, "precision": plan.precision, "sub_batch_cost": budget}
    entry |= {"peak_flops": statistics.mean(peaks), "tokens_per_s": tokens_per_s, "share_of_peak": shares}
    told = f"{name}, {kind}: packed {tokens_per_s['packed']:.0f} tokens/s, {100 * shares['packed']:.0f} % of the peak"
    return "speed", told, entry


def ours(adapter: Adapter, path: str, batches: list[Batch]) -> None:
    adapter.encoder.use(path)
    for batch in batches:
        adapter.forward(batch)


def text_of(tokens: int) -> str:
    """So many tokens with the two that the tokenizer adds."""
    return " ".join(f"w{1000 + i}" for i in range(tokens - 2))
