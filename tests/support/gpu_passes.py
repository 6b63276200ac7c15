"""Passes of the families on a pretended GPU."""

import functools
from collections.abc import Callable, Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers

from benchmarks.architectures import ARCHITECTURES, _sizes, build, sharpen
from sie_triton.contract import Batch
from sie_triton.contract.model import Ragged
from sie_triton.contract.tensors import INPUT_IDS, PROMPT_TOKENS, TOKEN_TYPE_IDS
from sie_triton.engines.torch.attention import Segments
from sie_triton.engines.torch.attention.kernels import KERNELS
from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.engines.torch.heads import SequenceHead, TokenHead
from sie_triton.models.families.bge_m3.adapter import BgeM3Adapter
from sie_triton.models.families.cross_encoder.adapter import CrossEncoderAdapter
from sie_triton.models.families.multivector.adapter import MultiVectorAdapter
from sie_triton.models.families.sentence_transformer.adapter import SentenceTransformerAdapter
from sie_triton.models.families.shared.sequence_head import SequenceClassifier
from sie_triton.models.families.splade.adapter import SpladeAdapter
from tests.support.pretended_gpu import Book, OnDevice, PretendedGpu

LENGTHS = (5, 1, 40, 17, 17)
WIDTH = 64
POOLINGS = ("mean", "cls", "lasttoken", "max", "mean_sqrt_len_tokens", "weightedmean")


def batch_of(lengths: Sequence[int] = LENGTHS, prompt: int = 0, **given: Any) -> Batch:
    of_items = np.array(lengths, np.int32)
    ids = np.random.default_rng(0).integers(8000, 20000, of_items.sum(), dtype=np.int32)
    features = {
        INPUT_IDS.name: Ragged(ids, of_items),
        TOKEN_TYPE_IDS.name: Ragged(np.zeros_like(ids), of_items),
        PROMPT_TOKENS.name: Ragged(np.full(len(of_items), prompt, np.int32)),
    }
    return Batch(features, np.arange(len(of_items)) % 2 == 0, **given)


def varlen(gpu: PretendedGpu) -> Callable[..., torch.Tensor]:
    """A kernel that reads the bounds of items, and which of their tokens are keys, on the device."""

    def attend(query: Any, key: Any, value: Any, segments: Segments, scaling: float, window: Any) -> torch.Tensor:
        numbers = [segments.offsets(query.device)]
        if not segments.all_are_keys:
            numbers.append(segments.num_keys(query.device))
        assert all(isinstance(each, OnDevice) and each.dtype == torch.int32 for each in numbers)
        ends = numbers[0].held.tolist()
        lengths = [end - start for start, end in pairwise(ends)]
        alone = Segments.of(lengths, numbers[1].held.tolist() if len(numbers) > 1 else segments.keys)
        compute = functools.partial(KERNELS["sdpa"], segments=alone, scaling=scaling, window=window)
        return gpu.kernel("varlen", compute, query, key, value)

    return attend


def encoder_of(model: Any, gpu: PretendedGpu | None, path: str = "packed") -> TorchEncoder:
    """Return the model's encoder, on the GPU if one is given."""
    encoder = TorchEncoder(model)
    encoder.use(path)
    if gpu is not None:
        encoder.device, encoder.kernel = torch.device("cuda:0"), varlen(gpu)
    return encoder


def dense(gpu: Any, layers: int, pooling: str = "mean", architecture: str = "BERT", path: str = "packed") -> Any:
    encoder = encoder_of(build(architecture, layers=layers), gpu, path)
    return SentenceTransformerAdapter(encoder, torch.nn.Sequential(), (pooling,), WIDTH, is_unit=False)


def multivector(gpu: Any, layers: int) -> Any:
    torch.manual_seed(0)
    encoder, projection = encoder_of(build("BERT", layers=layers), gpu), torch.nn.Linear(WIDTH, 16)
    text = SimpleNamespace(lengths=SimpleNamespace(expansion=None))
    files = SimpleNamespace(text=text, normalize=True, skipped_in=("document",), markers=None)
    # What gives no vector are ids like any other.
    skipped = np.arange(encoder.vocab_size) % 3 == 0
    return MultiVectorAdapter(encoder, projection, files, skipped, np.zeros_like(skipped))


def splade(gpu: Any, layers: int) -> Any:
    head = TokenHead(_headed("BertForMaskedLM", layers))
    encoder = encoder_of(head.encoder, gpu)
    encoder.loras.model.heads.append(head.model)
    return SpladeAdapter(encoder, head, SimpleNamespace(pooling="max", activation="relu", most=None), None)


def bge_m3(gpu: Any, layers: int) -> Any:
    torch.manual_seed(0)
    sizes = {"dense": WIDTH, "sparse": 1, "multivector": WIDTH}
    parts = torch.nn.ModuleDict({name: torch.nn.Linear(WIDTH, size) for name, size in sizes.items()})
    encoder = encoder_of(build("XLM-RoBERTa", layers=layers), gpu)
    return BgeM3Adapter(encoder, parts, SimpleNamespace(special_ids=[0, 1, 2]), ("cls",))


def cross_encoder(gpu: Any, layers: int) -> Any:
    classifier = SequenceClassifier.__new__(SequenceClassifier)
    classifier._head = SequenceHead(_headed("BertForSequenceClassification", layers))
    classifier.encoder, classifier._sees_types = encoder_of(classifier._head.encoder, gpu), True
    return CrossEncoderAdapter(classifier, torch.nn.Sigmoid())


def _headed(name: str, layers: int) -> Any:
    torch.manual_seed(7)
    config = transformers.BertConfig(**_sizes("BertConfig", WIDTH, layers, 4), num_labels=1)
    return sharpen(getattr(transformers, name)(config)).eval()


FAMILIES: dict[str, Callable[[Any, int], Any]] = {
    **{f"dense, {pooling}": functools.partial(dense, pooling=pooling) for pooling in POOLINGS},
    "multivector": multivector,
    "splade": splade,
    "bge_m3": bge_m3,
    "cross_encoder": cross_encoder,
}
PADDED = ("Gemma 2, capped scores", "MPNet", "T5 encoder", "BLOOM, causal")
PACKED = [name for name in ARCHITECTURES if name not in PADDED]


def modules_of(adapter: Any) -> list[torch.nn.Module]:
    """All modules that have weights."""
    classifier = getattr(adapter, "_classifier", None)
    heads = [getattr(adapter, name, None) for name in ("_head", "_projection", "_layers")]
    parts = [adapter.encoder.model, *heads, getattr(classifier, "_head", None)]
    return [part for each in parts if isinstance(part := getattr(each, "model", each), torch.nn.Module)]


def run(make: Callable[[Any, int], Any], batch: Batch) -> tuple[dict[str, Any], Book]:
    """Return the rows of its second pass on the GPU, and the records of that pass."""
    gpu = PretendedGpu()
    adapter = make(gpu, 2)
    with gpu.holding(*modules_of(adapter)):
        adapter.forward(batch)
        book = gpu.opened()
        return adapter.forward(batch), book
