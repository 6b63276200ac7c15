"""Models in this process: loaded as a worker loads them, and batches as it gets them."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sie_triton.contract import Batch, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, PROMPT_TOKENS, TOKEN_TYPE_IDS
from sie_triton.engines import open_engine
from sie_triton.engines.measurements import Measurements
from sie_triton.models import families
from sie_triton.models.families import Adapter
from sie_triton.pipeline.stages.tokenizer_files import overlay
from sie_triton.pipeline.worker.tokenizer import write_tokenizer


@cache
def _cache() -> "TemporaryDirectory[str]":
    """Return the directory of this process, which ends with it."""
    return TemporaryDirectory(prefix="sie-tokenizers-")


def with_tokenizers(spec: ModelSpec, directory: Path) -> Path:
    """The directory as stages pass it on, with the tokenizers of the library; they are made in this process."""
    if families.family(spec.family).keeps_tokenizer(directory):
        return directory
    return overlay(directory, Path(_cache().name), write_tokenizer, append_eos=bool(spec.options.get("append_eos")))


def load_adapter(spec: ModelSpec, directory: Path, measurements: Measurements | None = None) -> Adapter:
    return families.load_adapter(spec, directory, open_engine(spec, "cpu", measurements or Measurements()))


def token_batch(
    input_ids: Any,
    lengths: Any,
    prompt_tokens: Any = None,
    is_query: Any = None,
    outputs: Sequence[str] = (),
    type_ids: Any = None,
) -> Batch:
    """Batch of int32 [tokens] and [items], and bool [items]; without prompts, and of documents, by default."""
    num_items = len(lengths)
    features = {
        INPUT_IDS.name: Ragged(input_ids, lengths),
        PROMPT_TOKENS.name: Ragged(np.zeros(num_items, np.int32) if prompt_tokens is None else prompt_tokens),
        TOKEN_TYPE_IDS.name: Ragged(np.zeros_like(input_ids) if type_ids is None else type_ids, lengths),
    }
    return Batch(features, np.zeros(num_items, np.bool_) if is_query is None else is_query, frozenset(outputs))
