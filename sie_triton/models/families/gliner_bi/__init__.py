"""GLiNER with a separate encoder for labels (Stepanov et al., 2025): there may be many labels, and each is read once.

words → encoder → spans or tokens × labels → entities; labels → their encoder → cache
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from sie_triton.checkpoints.gliner import GlinerFiles, is_gliner, labels_repository
from sie_triton.contract import Features, Label, Part, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, LABEL_THRESHOLDS, PIECE, WORD_SPANS, WORD_TOKENS
from sie_triton.errors import InputError
from sie_triton.models.families.base import Options, Recognised
from sie_triton.models.families.gliner import OVERLAP, Gliner
from sie_triton.models.families.shared.labels.ids import LABEL_IDS, LABEL_SIZES, Labels, label_ids, labels_of
from sie_triton.models.families.shared.labels.words import SAMPLE_LABELS, sample_words
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.prompt import Prompted
from sie_triton.models.inputs.tokenizer import open_tokenizer
from sie_triton.models.inputs.words import KEPT_PROMPTS, LabelledWords, Pieces, WordsPrompt, WordTokenizer


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


# Maximum label tokens of a request; every text carries those of all labels.
MAX_LABEL_TOKENS = 1 << 24

NO_PROMPT = WordsPrompt(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.float32))


class GlinerBiTokenizer(LabelledWords):
    """Tokenizer for rows of the form: word word …; each label is tokenized separately."""

    def __init__(self, files: GlinerFiles, max_length: int, max_words: int) -> None:
        pieces = Pieces(max_words, min(max_length, files.longest(0)), max(OVERLAP, files.max_width))
        super().__init__(open_tokenizer(files.tokenizer), pieces, 0, by_last_token=files.uses_last_token)
        self._labels_tokenizer = open_tokenizer(files.labels_tokenizer)
        self._labels_tokenizer.enable_truncation(files.longest_label)
        self._labels = lru_cache(KEPT_PROMPTS)(self._labels_of)

    def prompt(self, labels: Sequence[Label], words: WordTokenizer) -> WordsPrompt:
        """Return an empty prompt, since labels are not in the row."""
        return NO_PROMPT

    def frame(self, part: Part) -> Frame:
        super().frame(part)
        return Prompted(lambda: self._labels_for(tuple(part.labels), len(part.elements)), 0)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        return super().encode([(NO_PROMPT, text) for _, text in framed])

    def finish(self, features: Features, frame: Frame) -> Features:
        assert isinstance(frame, Prompted)
        return {**features, **label_ids([frame.prompt] * len(features[PIECE.name].values))}

    def _labels_for(self, labels: tuple[Label, ...], num_texts: int) -> Labels:
        """Return the labels for each of `num_texts`."""
        read = self._labels(labels)
        num_tokens = len(read.ids) * num_texts
        if num_tokens > MAX_LABEL_TOKENS:
            raise InputError.at(
                "labels",
                f"have {len(read.ids)} tokens for each of {num_texts} texts, {num_tokens} together; "
                f"at most {MAX_LABEL_TOKENS} are allowed in a request; send fewer texts at once",
            )
        return read

    def _labels_of(self, labels: Sequence[Label]) -> Labels:
        encodings = self._labels_tokenizer.encode_batch_fast([label.read for label in labels])
        return labels_of(labels, [encoding.ids for encoding in encodings])


def load_processor(spec: ModelSpec, directory: Path) -> GlinerBiTokenizer:
    files, max_words = GlinerFiles.read(directory), GlinerBiOptions.of(spec).max_len
    return GlinerBiTokenizer(files, spec.max_sequence_length, max_words or files.max_words)
