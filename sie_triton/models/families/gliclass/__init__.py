"""GLiClass: classes named by labels, all of which are read with the text at once (Stepanov et al., 2025).

labels and text → encoder → a state for each label, one for the text → scores
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.contract import Extraction, Features, Findings, Label, ParameterValue, Part, Ragged, Rows
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, LABEL_THRESHOLDS, LABEL_TOKENS, PIECE, Tensor
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.gliclass.examples import EXAMPLES, examples_of
from sie_triton.models.families.gliclass.examples import MARKER as EXAMPLE
from sie_triton.models.families.shared.classes import (
    CLASS_LOGITS,
    IS_MULTI,
    SCORING,
    SIGMOID,
    THRESHOLD,
    TYPE,
    classes,
    scores_of,
)
from sie_triton.models.families.shared.label_groups import (
    LABEL_GROUPS,
    grouped_findings,
    groups_of,
    labels_or_groups,
)
from sie_triton.models.families.shared.labels.ids import thresholds_of
from sie_triton.models.families.shared.thresholds import least_score
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.growth import check_whole
from sie_triton.models.inputs.prompt import Prompted
from sie_triton.models.inputs.tokenizer import open_tokenizer
from sie_triton.models.inputs.windows import TextWindow, WindowProcessor, packed, windows

POOLINGS = ("first", "last", "avg", "max", "sum", "rms", "abs_max", "abs_avg")
SCORERS = ("simple", "weighted-dot", "mlp", "hopfield")

# Architectures with relative positions only, which have no maximum length.
RELATIVE = ("deberta-v2",)

# The default of gliclass, to which it truncates a text together with its labels.
USUAL_LENGTH = 1024

# Keys of config.json that turn on features that cannot be served.
UNSUPPORTED = {
    "use_lstm": "an LSTM over the tokens",
    "squeeze_layers": "an average of all layers",
    "use_segment_embeddings": "segment embeddings",
    "use_calibrator": "a calibrator",
    "multimodal": "images or audio",
}


@dataclass(frozen=True, slots=True)
class GliclassFiles:
    """Files of a GLiClass model."""

    directory: Path
    config: Fields
    encoder: Fields
    pooling: str
    scorer: str
    hidden_size: int
    marker_id: int
    averages_labels: bool  # a label's state is the mean of its tokens, not that of one
    embeds_marker: bool  # that one is the first, the marker, not the second
    reads_text_alone: bool  # only the states from the separator on are pooled
    labels_first: bool
    normalizes: bool
    activation: str

    @classmethod
    def read(cls, directory: Path) -> "GliclassFiles":
        config = read_fields(directory / "config.json")
        check_supported(config)
        said = config.fields("encoder_config")
        sizes = {"vocab_size": config.integer("vocab_size", least=1)} if config.has("vocab_size") else {}
        encoder = Fields(said.where, {"model_type": RELATIVE[0], **said.values, **sizes})
        return cls(
            directory=directory,
            config=config,
            encoder=encoder,
            pooling=config.one_of("pooling_strategy", POOLINGS),
            scorer=config.one_of("scorer_type", SCORERS),
            hidden_size=config.integer("hidden_size", encoder.integer("hidden_size", least=1), least=1),
            marker_id=config.integer("class_token_index"),
            averages_labels=config.one_of("class_token_pooling", ("first", "average")) == "average",
            embeds_marker=config.flag("embed_class_token", True),
            reads_text_alone=config.flag("extract_text_features", False),
            labels_first=config.flag("prompt_first", False),
            normalizes=config.flag("normalize_features", False),
            activation=config.text("projector_hidden_act", "gelu"),
        )

    @property
    def architecture(self) -> str:
        return self.encoder.text("model_type")

    @property
    def longest(self) -> int:
        """Maximum tokens in a row."""
        positions = self.encoder.integer("max_position_embeddings", 512, least=8)
        if self.architecture in RELATIVE:
            return max(positions, USUAL_LENGTH)
        return positions - (self.encoder.integer("pad_token_id", 0) + 1 if "roberta" in self.architecture else 0)


def check_supported(config: Fields) -> None:
    """Raise LoadError naming the key of a feature that cannot be served."""
    kind = config.text("architecture_type", "uni-encoder")
    if kind != "uni-encoder":
        raise config.unserved(f"architecture_type {kind} cannot be served; supported is uni-encoder")
    for key, what in UNSUPPORTED.items():
        if config.flag(key, False):
            raise config.unserved(f"{key}: models with {what} cannot be served")
    if config.values.get("encoder_layer_id", -1) != -1:
        raise config.unserved("encoder_layer_id: only -1, the last layer, can be served")
    if not config.has("encoder_config"):
        raise config.unserved("encoder_config is missing")


SEPARATOR = Tensor("separator", "INT32", (-1,), "[pieces] index of the token behind the labels", "", 0)

# Number of label tokens in an item for measuring.
SAMPLE_LABELS = 4


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Merge the windows of a text. The classes of a group exclude each other, not those of other groups."""
    groups = groups_of(options)
    if not groups:
        return classes(rows, options)
    ends = np.cumsum([len(group.labels) for group in groups])[:-1].tolist()
    return grouped_findings(
        groups, scores_of(rows, ends), least_score(options, 0), int(rows[0][SCORING.name]) == SIGMOID
    )


class Gliclass(Family):
    extraction = Extraction((CLASS_LOGITS, SCORING, LABEL_THRESHOLDS), findings, "optional")
    features = (INPUT_IDS, PIECE, LABEL_TOKENS, LABEL_THRESHOLDS, SEPARATOR)
    parameters = (THRESHOLD, IS_MULTI, TYPE, LABEL_GROUPS, EXAMPLES)
    takes_loras = True
    reference_adapters = ("gliclass:GLiClassAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if read_fields(directory / "config.json", required=False).values.get("model_type") != "GLiClass":
            return None
        files = GliclassFiles.read(directory)
        reason = f"config.json: GLiClass, {files.scorer} over {files.architecture}"
        length = min(files.longest, USUAL_LENGTH)
        return Recognised(reason, length, {}, extracts=True, weights=(directory,))

    def longest(self, directory: Path) -> int:
        return GliclassFiles.read(directory).longest

    def sample(self, lengths: Sequence[int]) -> Features:
        tokens = np.maximum(np.array(lengths, np.int32), 2)  # a label and the separator
        num_labels = np.minimum(SAMPLE_LABELS, tokens - 1)
        places = np.concatenate([np.arange(each, dtype=np.int32) for each in num_labels])
        return {
            INPUT_IDS.name: Ragged(np.ones(int(tokens.sum()), np.int32), tokens),
            PIECE.name: Ragged(np.zeros(len(tokens), np.int32)),
            LABEL_TOKENS.name: Ragged(places, num_labels),
            LABEL_THRESHOLDS.name: Ragged(np.full(len(places), np.nan, np.float32), num_labels),
            SEPARATOR.name: Ragged(tokens - 1),
        }


MARKER, END = "<<LABEL>>", "<<SEP>>"


class LabelPrompt(NamedTuple):
    """The prompt of a row."""

    labels: Ints  # their tokens
    places: Ints  # of their markers
    thresholds: npt.NDArray[np.float32]
    instruction: str  # after the separator
    tail: Ints  # tokens of separator and instruction
    examples: Ints  # tokens after the text, or after `tail` if the text goes first

    def num_tokens(self, tail: Ints) -> int:
        return len(self.labels) + len(tail) + len(self.examples)


class GliclassTokenizer(WindowProcessor):
    """Tokenizer for rows of the form: marker label marker label … separator instruction text examples.

    The text goes first if the model was trained so. A text that is too long for its labels is cut into overlapping
    windows.
    """

    pairs = False

    def __init__(self, tokenizer: tokenizers.Tokenizer, files: GliclassFiles, max_length: int) -> None:
        super().__init__(tokenizer, max_length)
        self._labels_first = files.labels_first
        self._end = self._only_token(END, files)
        if self._only_token(MARKER, files) != files.marker_id:
            raise files.config.corrupt(f"class_token_index is not the id of the token {MARKER}")

    def frame(self, part: Part) -> Frame:
        groups = labels_or_groups(part.labels, part.options)
        named = [Label(f"{group.name}.{label.read}") for group in groups for label in group.labels]
        labels, instruction, examples = (
            tuple(part.labels) or tuple(named),
            part.instruction or "",
            examples_of(part.options),
        )
        if examples and self._tokenizer.token_to_id(EXAMPLE) is None:
            raise InputError.at(f"parameter {EXAMPLES.name}", f"this model has no token {EXAMPLE}; leave it out")
        num_characters = len(instruction) + len(examples) + sum(len(label.read) for label in labels)
        return Prompted(lambda: self._prompt(labels, instruction, examples), num_characters)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        check_whole((text for _, text in framed), self._tokenizer)
        before = [END + prompt.instruction if self._labels_first else "" for prompt, _ in framed]
        # The tokens of a text may differ after a separator, so both are tokenized together.
        texts = [start + text for start, (_, text) in zip(before, framed, strict=True)]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        rows = [
            self._row(prompt, tail, number, text[first:end])
            for (prompt, _), start, encoding in zip(framed, before, encodings, strict=True)
            for tail, text in [_parted(encoding, len(start)) if start else (prompt.tail, _ids(encoding))]
            for number, (first, end) in enumerate(windows(len(text), self._room - prompt.num_tokens(tail)))
        ]
        tokens, places, thresholds, separators = zip(*rows, strict=True)
        return {
            **packed(tokens),
            LABEL_TOKENS.name: Ragged.of(places),
            LABEL_THRESHOLDS.name: Ragged.of(thresholds),
            SEPARATOR.name: Ragged(np.array(separators, np.int32)),
        }

    def _row(self, prompt: LabelPrompt, tail: Ints, number: int, window: Ints) -> "LabelledRow":
        asked = [prompt.labels, tail]
        parts = [*asked, window] if self._labels_first else [window, *asked]
        row = self._around.row(number, np.concatenate([*parts, prompt.examples]))
        offset = len(self._around.special[0][0]) + (0 if self._labels_first else len(window))
        return LabelledRow(row, prompt.places + offset, prompt.thresholds, offset + len(prompt.labels))

    def _prompt(self, labels: Sequence[Label], instruction: str, examples: str) -> LabelPrompt:
        read = [*(MARKER + label.read for label in labels), END + instruction, examples]
        *parts, tail, after = self._token_ids(read)
        starts = np.cumsum([0, *map(len, parts)])
        places = starts[:-1].astype(np.int32)
        prompt = LabelPrompt(np.concatenate(parts), places, thresholds_of(labels), instruction, tail, after)
        if (num_tokens := prompt.num_tokens(tail)) > self._room // 2:
            raise InputError.at(
                "labels",
                f"labels, instruction and examples have {num_tokens} tokens; this model reads at most "
                f"{self._room // 2} of them with each text; send fewer or shorter ones",
            )
        return prompt

    def _only_token(self, text: str, files: GliclassFiles) -> int:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if len(ids) != 1:
            raise LoadError(f"{files.directory / 'tokenizer.json'}: {text} must be a single token", "corrupt")
        return ids[0]


class LabelledRow(NamedTuple):
    """A row with the positions of its labels' markers, `places`, and of the `separator` after them."""

    row: TextWindow
    places: Ints
    thresholds: npt.NDArray[np.float32]
    separator: int


def _ids(encoding: tokenizers.Encoding) -> Ints:
    return np.array(encoding.ids, np.int32)


def _parted(encoding: tokenizers.Encoding, length: int) -> tuple[Ints, Ints]:
    """Split the tokens into those that begin in the first `length` characters, and the others."""
    first = sum(begin < length for begin, _ in encoding.offsets)
    ids = _ids(encoding)
    return ids[:first], ids[first:]


def load_processor(spec: ModelSpec, directory: Path) -> GliclassTokenizer:
    files = GliclassFiles.read(directory)
    return GliclassTokenizer(open_tokenizer(directory), files, min(spec.max_sequence_length, files.longest))
