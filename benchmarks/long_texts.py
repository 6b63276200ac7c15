"""Measure forward passes of large encoders over long texts: speed, attention's share, and working memory."""

import gc
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console
from rich.progress import track
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from benchmarks.lanes import peak
from benchmarks.precision import native_precisions
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.attention import PACKED_ATTENTION
from sie_triton.engines.torch.encoder import PACKED, TorchEncoder
from sie_triton.engines.torch.int8 import quantize
from sie_triton.engines.torch.precision import DTYPES, INT8
from sie_triton.engines.torch.prepack import PrepackedLinear
from sie_triton.system.host.process_memory import return_freed

LONGEST = 8192

# Config class of transformers and its arguments.
SHAPES: Mapping[str, tuple[str, dict[str, Any]]] = {
    "BERT-large": (
        "BertConfig",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "Qwen3-0.6B": (
        "Qwen3Config",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 3072,
        },
    ),
}

# Lengths of the items of a pass, by the name of its row.
PASSES: Mapping[str, Sequence[int]] = {
    "8 x 512": [512] * 8,
    "1 x 8,192": [LONGEST],
    "1 x 8,192 and 64 x 32": [LONGEST, *[32] * 64],
}

COLUMNS = ["model", "precision", "tokens", "tokens/s", "share of the peak", "attention's share", "working memory, MB"]


def long_texts(rounds: int) -> tuple[str, list[str], list[list[str]]]:
    """Measure each pass `rounds` times, those with a text of 8,192 tokens once."""
    cases = [(shape, precision) for shape in SHAPES for precision in native_precisions()]
    rows = [row for case in track(cases, "long texts", console=Console(stderr=True)) for row in rows_of(*case, rounds)]
    title = (
        f"One forward pass at a time, packed, medians of {rounds} rounds (8,192 tokens: one); share "
        "of the matrix-product peak of the precision, int8 of float32's; working memory: peak above the weights"
    )
    return title, COLUMNS, rows


def rows_of(shape: str, precision: str, rounds: int) -> Iterator[list[str]]:
    encoder = encoder_of(shape, precision)
    flops_per_token = 2.0 * sum(math.prod(shape) for shape in shapes_of(encoder))
    config = encoder.config
    width = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads) * config.num_attention_heads
    for name, items in PASSES.items():
        lengths = np.array(items, np.int32)
        squares = float((lengths.astype(np.int64) ** 2).sum()) / (2 if encoder.is_causal else 1)
        flops = flops_per_token * lengths.sum() + 4.0 * width * config.num_hidden_layers * squares
        measured = [measure(encoder, lengths) for _ in range(1 if LONGEST in items else rounds)]
        seconds, attention_s, num_bytes = (statistics.median(each) for each in zip(*measured, strict=True))
        share = flops / seconds / 1e9 / peak("float32" if precision == INT8 else precision)
        yield [
            *(shape, precision, name, f"{lengths.sum() / seconds:.0f}", f"{100 * share:.0f} %"),
            *(f"{100 * attention_s / seconds:.0f} %", f"{num_bytes / 1e6:,.0f}"),
        ]
    del encoder
    gc.collect()


def encoder_of(shape: str, precision: str) -> TorchEncoder:
    """Return an encoder with random weights, prepared as for a model that is served."""
    name, sizes = SHAPES[shape]
    torch.manual_seed(0)
    config = getattr(transformers, name)(vocab_size=30522, max_position_embeddings=LONGEST, **sizes)
    from_config: Any = transformers.AutoModel.from_config
    model = from_config(config, attn_implementation="eager")
    encoder = TorchEncoder(model.eval().to(DTYPES.get(precision, torch.float32)))
    encoder.prepare()
    encoder.use(PACKED)
    if precision == INT8:
        quantize(encoder, LONGEST, Measurements(), shape)
    return encoder


def shapes_of(encoder: TorchEncoder) -> Iterator[torch.Size]:
    """Yield the shape of each linear layer's weight."""
    for module in encoder.model.modules():
        if isinstance(module, torch.nn.Linear | PrepackedLinear):
            yield module.weight.shape


def measure(encoder: TorchEncoder, lengths: np.ndarray[Any, np.dtype[np.int32]]) -> tuple[float, float, int]:
    """Return the seconds of a pass, those within attention, and the peak of the memory that it needs, in bytes."""
    input_ids = np.random.default_rng(0).integers(1000, 20000, lengths.sum(), dtype=np.int32)
    return_freed()
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM to VmRSS
    with timed_attention() as spent:
        started = time.perf_counter()
        encoder.hidden_states(input_ids, lengths)
        seconds = time.perf_counter() - started
    return seconds, sum(spent), memory("VmHWM") - before


@contextmanager
def timed_attention() -> Iterator[list[float]]:
    """Yield a list that receives the seconds of each layer's attention."""
    spent, attention = [], ALL_ATTENTION_FUNCTIONS[PACKED_ATTENTION]

    def timed(*args: Any, **options: Any) -> Any:
        started = time.perf_counter()
        try:
            return attention(*args, **options)
        finally:
            spent.append(time.perf_counter() - started)

    ALL_ATTENTION_FUNCTIONS[PACKED_ATTENTION] = timed
    try:
        yield spent
    finally:
        ALL_ATTENTION_FUNCTIONS[PACKED_ATTENTION] = attention


def memory(name: str) -> int:
    """Return a field of /proc/self/status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
