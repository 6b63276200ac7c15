"""GLiNER with a separate encoder for labels (Stepanov et al., 2025): there may be many labels, and each is read once.

words → encoder → spans or tokens × labels → entities; labels → their encoder → cache
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge

from sie_triton.checkpoints.gliner import GlinerFiles, is_gliner, labels_repository
from sie_triton.contract import Features, Ragged
from sie_triton.contract.tensors import INPUT_IDS, LABEL_THRESHOLDS, PIECE, WORD_SPANS, WORD_TOKENS
from sie_triton.models.families.base import Options, Recognised
from sie_triton.models.families.gliner import Gliner
from sie_triton.models.families.shared.labels.ids import LABEL_IDS, LABEL_SIZES
from sie_triton.models.families.shared.labels.words import SAMPLE_LABELS, sample_words


@dataclass(frozen=True)
class GlinerBiOptions(Options):
    """Options of GLiNER bi-encoders. `max_len` limits the words of a piece; None is the checkpoint's limit."""

    max_len: Annotated[int, Ge(1)] | None = None


class GlinerBi(Gliner):
    features = (INPUT_IDS, PIECE, WORD_TOKENS, WORD_SPANS, LABEL_IDS, LABEL_SIZES, LABEL_THRESHOLDS)
    options = GlinerBiOptions
    reference_adapters = ("gliner_bi:GLiNERBiAdapter",)
    files = (*Gliner.files, "labels_tokenizer/*.json")

    def recognise(self, directory: Path) -> Recognised | None:
        if not is_gliner(directory):
            return None
        files = GlinerFiles.read(directory)
        if not files.is_bi_encoder:
            return None
        labels = files.labels_encoder.text("model_type", "another encoder")
        reason = f"gliner_config.json: {files.span_mode} over {files.architecture}, labels by {labels}"
        return Recognised(reason, self.longest(directory), {}, extracts=True, weights=files.complete)

    def other_repositories(self, directory: Path) -> Mapping[str, str]:
        return {**super().other_repositories(directory), **labels_repository(directory)}

    def longest(self, directory: Path) -> int:
        return GlinerFiles.read(directory).longest(0)

    def sample(self, lengths: Sequence[int]) -> Features:
        num = len(lengths)
        numbers = np.arange(1, num * SAMPLE_LABELS + 1, dtype=np.int32)
        each = np.full(num, SAMPLE_LABELS, np.int32)
        return {
            **sample_words(lengths),
            LABEL_IDS.name: Ragged(np.minimum(numbers, 100), each),
            LABEL_SIZES.name: Ragged(np.ones_like(numbers), each),
            LABEL_THRESHOLDS.name: Ragged(np.full(len(numbers), np.nan, np.float32), each),
        }
