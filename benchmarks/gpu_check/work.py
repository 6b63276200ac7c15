"""A saved model as a worker loads it, its batches, and the same computation by the libraries."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers

from benchmarks.gpu_check.scope import Finding, Plan
from benchmarks.gpu_check.shapes import MAX_LENGTH, SIZES, config_of, text_of
from benchmarks.lanes import token_batch
from sie_triton.contract import Batch
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.engines import open_engine
from sie_triton.engines.measurements import Measurements
from sie_triton.models.families import Adapter, load_adapter
from sie_triton.pipeline.scheduling import plan as cut
from sie_triton.pipeline.worker.messages import Load

LIBRARY_BATCH = 32  # sentence-transformers' own
QUERY_TOKENS = 16
NUM_LANES = 2

Items = Sequence[npt.NDArray[np.int32]]


def spec_of(name: str, plan: Plan, precision: str = "") -> ModelSpec:
    """Return a spec as render makes it; calibration tries sub-batches up to its `max_batch_cost`."""
    most = 1024 if plan.is_dry else 131072
    dims = {"dense": config_of(name, plan).hidden_size}
    spec = ModelSpec(name, "", "sentence_transformer", dims, MAX_LENGTH, most)
    return replace(spec, runtime=Runtime(device=plan.device, precision=precision or plan.precision))


def order_of(name: str, plan: Plan, directory: Path) -> Load:
    """Return the message that a stage would send to a new worker, forked by the run's fork server."""
    lock = plan.fork_server / f"{directory.parent.name}.lock"
    return Load(
        spec_of(name, plan).to_json(), directory, plan.device, directory.parent / "measured", lock, NUM_LANES, 1
    )


def adapter_of(name: str, plan: Plan, directory: Path, precision: str) -> Adapter:
    """Load the model into this process."""
    spec = spec_of(name, plan, precision)
    return load_adapter(spec, directory, open_engine(spec, plan.device, Measurements()))


def items_of(lengths: Sequence[int]) -> Items:
    """Return random token ids for items of these lengths."""
    return [np.random.default_rng(n).integers(1000, 20000, n, dtype=np.int32) for n in lengths]


def query() -> Batch:
    return token_batch([np.full(QUERY_TOKENS, 1000, np.int32)])


def varied_lengths(plan: Plan) -> list[int]:
    """Return lengths distributed as in real texts, few of them long."""
    varied = np.random.default_rng(0).lognormal(np.log(100), 0.9, 8 if plan.is_dry else 512)
    lengths: list[int] = np.clip(varied, 5, MAX_LENGTH).astype(int).tolist()
    return lengths


def batches_of(items: Items, max_tokens: int) -> list[Batch]:
    """Split items into sub-batches as the scheduler would."""
    return [token_batch([items[i] for i in each]) for each in cut(list(map(len, items)), max_tokens)]


class Library:
    """The model computed by transformers alone, in `precision`."""

    def __init__(self, name: str, plan: Plan, directory: Path, precision: str) -> None:
        self._plan, self._is_causal = plan, SIZES[name].is_causal
        model: Any = transformers.AutoModel.from_pretrained(directory, dtype=getattr(torch, precision))
        self._model = model.to(plan.device).eval()

    @torch.inference_mode()
    def vectors(self, items: Items) -> npt.NDArray[np.float32]:
        """Compute vectors, [items, d]: each item alone, pooled as the model's files specify."""
        states = (self._model(torch.from_numpy(item.astype(np.int64))[None].to(self._plan.device)) for item in items)
        pooled = (each.last_hidden_state[0] for each in states)
        kept = [each[-1] if self._is_causal else each.mean(dim=0) for each in pooled]
        return torch.stack(kept).float().cpu().numpy()

    @torch.inference_mode()
    def forward(self, items: Items) -> None:
        """Compute items in the given order, padded to the longest of each batch."""
        for start in range(0, len(items), LIBRARY_BATCH):
            batch = items[start : start + LIBRARY_BATCH]
            columns = np.arange(max(map(len, batch)))
            mask = columns < np.array([len(item) for item in batch])[:, None]
            input_ids = np.zeros(mask.shape, np.int64)
            input_ids[mask] = np.concatenate(batch)
            tensors = (torch.from_numpy(x).to(self._plan.device) for x in (input_ids, mask.astype(np.int64)))
            self._model(*tensors).last_hidden_state[:, 0].float().cpu()


def libraries(
    name: str, plan: Plan, directory: Path, lengths: Sequence[int]
) -> tuple[dict[str, Callable[[], object]], list[Finding]]:
    """Return the work by transformers and sentence-transformers; without the latter, a note instead."""
    items, texts = items_of(lengths), list(map(text_of, lengths))
    subjects: dict[str, Callable[[], object]] = {}
    subjects["transformers"] = partial(
        with_cudnn, partial(Library(name, plan, directory, plan.precision).forward, items)
    )
    try:
        from sentence_transformers import SentenceTransformer
    except ModuleNotFoundError as exc:
        note = f"{name}, sentence-transformers: {exc.name} is not installed"
        return subjects, [Finding("notes", note, {"note": note})]
    options = {"dtype": getattr(torch, plan.precision)}
    sentences = SentenceTransformer(str(directory), device=plan.device, model_kwargs=options)
    encode = partial(sentences.encode, texts, batch_size=LIBRARY_BATCH)
    subjects["sentence-transformers, from text"] = partial(with_cudnn, encode)
    return subjects, []


def with_cudnn(work: Callable[[], object]) -> object:
    """Run `work` with cuDNN's attention enabled, the libraries' default, which our engine disables."""
    before = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        return work()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def cosine(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32]) -> float:
    """Return the lowest cosine of corresponding rows; [items, d] each."""
    products = (ours * theirs).sum(axis=1)
    return float((products / np.linalg.norm(ours, axis=1) / np.linalg.norm(theirs, axis=1)).min())
