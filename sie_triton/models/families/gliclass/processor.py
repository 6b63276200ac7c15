"""Labels and text → a row of packed token ids for each window of the text, as gliclass writes them. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_triton.contract import Features, Label, Part, Ragged
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import LABEL_THRESHOLDS, LABEL_TOKENS
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.gliclass import SEPARATOR
from sie_triton.models.families.gliclass.examples import EXAMPLES, examples_of
from sie_triton.models.families.gliclass.examples import MARKER as EXAMPLE
from sie_triton.models.families.gliclass.files import GliclassFiles
from sie_triton.models.families.shared.label_groups import labels_or_groups
from sie_triton.models.families.shared.labels.ids import thresholds_of
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.growth import check_whole
from sie_triton.models.inputs.tokenizer import open_tokenizer
from sie_triton.models.inputs.windows import TextWindow, WindowProcessor, packed, windows
from sie_triton.models.inputs.words import PromptedTexts

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
        return PromptedTexts(lambda: self._prompt(labels, instruction, examples), num_characters)

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
