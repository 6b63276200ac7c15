"""GLiNER2: entities, relations, classes and structures in one pass over a text (Zaratiana et al., 2025).

schema and words → encoder → number of instances → spans or choices × fields, labels of tasks → findings
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_triton.checkpoints.files import Fields, read_fields, read_json
from sie_triton.checkpoints.gliner import longest_piece
from sie_triton.contract import Extraction, Features, Label, Part, Ragged
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, LABEL_THRESHOLDS, LABEL_TOKENS, PIECE, WORD_SPANS, WORD_TOKENS
from sie_triton.errors import InputError, LoadError
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.gliner2.findings import findings
from sie_triton.models.families.gliner2.prompt import MARKERS, question_of
from sie_triton.models.families.gliner2.request import PARAMETERS, ExtractionRequest, request_of
from sie_triton.models.families.gliner2.tensors import (
    CHOICE_LABELS,
    CHOICE_TOKENS,
    COMPUTED,
    ENTITIES,
    FEATURES,
    FIELD,
    LABEL_ROLES,
)
from sie_triton.models.families.gliner2.words import word_spans
from sie_triton.models.families.shared.labels.words import sample_words
from sie_triton.models.inputs import Processor
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.growth import check_whole
from sie_triton.models.inputs.prompt import Prompted
from sie_triton.models.inputs.tokenizer import open_tokenizer
from sie_triton.models.inputs.words import KEPT_PROMPTS, Pieces, Words, WordTokenizer


@dataclass(frozen=True, slots=True)
class Gliner2Files:
    """Files of a GLiNER2 model. `max_words` limits the words of a piece, `max_width` those of a span."""

    directory: Path
    encoder: Fields
    counting_layer: str
    max_width: int
    max_words: int

    @classmethod
    def read(cls, directory: Path) -> "Gliner2Files":
        config, encoder = (read_fields(directory / name) for name in ("config.json", "encoder_config/config.json"))
        head = config.fields("span_head")
        for fields, key, served in (
            (config, "architecture", "span"),
            (config, "token_pooling", "first"),
            (head, "span_mode", "markerV0"),
        ):
            given = fields.text(key, served)
            if given != served:
                remedy = "; adapter_path: gliner2_library runs the library itself" if key == "architecture" else ""
                raise fields.unserved(f"{key} {given[:80]} cannot be served; supported is {served}{remedy}")
        return cls(
            directory=directory,
            encoder=encoder,
            counting_layer=config.one_of("counting_layer", ("count_lstm", "count_lstm_v2", "count_lstm_moe")),
            max_width=head.integer("max_width", config.integer("max_width", 8, least=1, most=1000), least=1, most=1000),
            max_words=config.integer("max_len", 512, least=1),
        )

    def longest(self, max_prompt: int) -> int:
        """Return the maximum tokens of a piece, including its schema, which has at most `max_prompt` tokens."""
        return longest_piece(self.encoder, self.max_words, max_prompt)


def is_gliner2(directory: Path) -> bool:
    config = read_json(directory / "config.json", default={})
    return isinstance(config, dict) and config.get("model_type") == "extractor"


# Maximum tokens of the schema, which is read with each piece of a text.
MAX_PROMPT = 2048


class Gliner2(Family):
    extraction = Extraction(COMPUTED, findings, "optional")
    features = FEATURES
    parameters = PARAMETERS
    takes_loras = True
    reference_adapters: ClassVar[tuple[str, ...]] = (
        "gliner2:GLiNER2Adapter",
        "gliner2.entities:GLiNER2EntitiesAdapter",
    )
    served_elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("fastino/gliner2.5-base-v1", "fastino/gliner2.5-small-v1"), "gliner2_library"
    )
    files = ("encoder_config/config.json",)

    def recognise(self, directory: Path) -> Recognised | None:
        if not is_gliner2(directory):
            return None
        files = Gliner2Files.read(directory)
        reason = f"config.json: extractor with {files.counting_layer} over {files.encoder.text('model_type', 'bert')}"
        return Recognised(reason, self.longest(directory), {}, extracts=True, weights=(directory,))

    def longest(self, directory: Path) -> int:
        return Gliner2Files.read(directory).longest(MAX_PROMPT)

    def sample(self, lengths: Sequence[int]) -> Features:
        """Return items with labels of entities only."""
        features = sample_words(lengths)
        of_labels = features[LABEL_TOKENS.name].lengths
        assert of_labels is not None
        roles = np.full(int(of_labels.sum()), FIELD, np.int32)
        roles[np.cumsum(of_labels) - of_labels] = ENTITIES
        none, no_lengths = np.empty(0, np.int32), np.zeros(len(lengths), np.int32)
        choices = {tensor.name: Ragged(none, no_lengths) for tensor in (CHOICE_TOKENS, CHOICE_LABELS)}
        return {**features, LABEL_ROLES.name: Ragged(roles, of_labels), **choices}


T = TypeVar("T", bound="Gliner2Tokenizer")

ENDS = (".", "!", "?")


class SchemaPrompt(NamedTuple):
    """The tokens before the words: `ids` int32, and the positions of labels and choices in them, int32."""

    ids: Ints
    label_tokens: Ints
    thresholds: npt.NDArray[np.float32]
    roles: Ints
    choice_tokens: Ints
    choice_labels: Ints


class SchemaRow(NamedTuple):
    """A piece of a text: its number, its tokens, the first token and the span of each word, and the prompt."""

    piece: int
    ids: Ints
    word_tokens: Ints
    word_spans: Ints
    prompt: SchemaPrompt


class Gliner2Tokenizer(Processor):
    """Tokenizer for rows of the form: prompt, separator, choices, word word …"""

    def __init__(self, tokenizer: tokenizers.Tokenizer, pieces: Pieces, max_prompt: int) -> None:
        self._words = WordTokenizer(tokenizer)
        self._pieces = pieces
        self._max_prompt = max_prompt
        self._prompt = lru_cache(KEPT_PROMPTS)(self._prompt_of)
        self._end = self._words.tokens([["."]])[0][0]

    def frame(self, part: Part) -> Frame:
        super().frame(part)
        request, labels = self._asked(part)
        question = question_of(request, labels)
        if not question.roles:
            others = ", ".join(parameter.name for parameter in PARAMETERS[2:])
            raise InputError.at("labels", f"is empty; send what to look for, as labels or in the parameters {others}")
        return Prompted(lambda: self._prompt(request, labels), sum(map(len, question.written)))

    def _asked(self, part: Part) -> tuple[ExtractionRequest, tuple[Label, ...]]:
        """Return what to look for in the part's texts, and the labels of its entities."""
        return request_of(part.options), tuple(part.labels)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        texts = [text if text.endswith(ENDS) else f"{text}." for _, text in framed]
        rows = [
            row
            for (prompt, text), words in zip(framed, self._read(texts), strict=True)
            for row in self._rows(prompt, text, words)
        ]
        return packed(rows)

    def _read(self, texts: Sequence[str]) -> list[Words]:
        """Split texts into words; a word without tokens points to the next token. Unreadable if a text is too long."""
        check_whole(texts, self._words.tokenizer)
        spans = [word_spans(text) for text in texts]
        tokens = self._words.tokens(
            [[text[a:b].lower() for a, b in places] for text, places in zip(texts, spans, strict=True)]
        )
        return [
            Words(np.array(places, np.int32).reshape(-1, 2), ids, starts_of(len(places), kept, starts))
            for places, (ids, kept, starts) in zip(spans, tokens, strict=True)
        ]

    def _rows(self, prompt: SchemaPrompt, text: str, words: Words) -> Iterator[SchemaRow]:
        """Yield the pieces, each ending like a sentence, as in training. An added full stop has an empty span."""
        room = max(1, self._pieces.max_tokens - len(prompt.ids) - len(self._end))
        for number, (first, end) in enumerate(self._pieces.of(words, room)):
            start = int(words.starts[first])
            # A single word may be longer than the room.
            stop = min(int(words.starts[end]), start + room)
            ids = words.ids[start:stop]
            tokens = np.minimum(words.starts[first:end], stop - 1) - start
            spans = np.minimum(words.spans[first:end], len(text))
            if end < len(words) and not text[: spans[-1, 1]].endswith(ENDS):
                ids, tokens = np.append(ids, self._end), np.append(tokens, len(ids))
                spans = np.append(spans, [[spans[-1, 1]] * 2], 0)
            ids = np.concatenate([prompt.ids, ids])
            yield SchemaRow(number, ids, (tokens + len(prompt.ids)).astype(np.int32), spans.astype(np.int32), prompt)

    def _prompt_of(self, request: ExtractionRequest, labels: tuple[Label, ...]) -> SchemaPrompt:
        question = question_of(request, labels)
        ((ids, kept, starts),) = self._words.tokens([question.written])
        if len(ids) > self._max_prompt:
            raise InputError.at(
                "labels",
                f"labels and the other parameters have {len(ids)} tokens; this model reads at most "
                f"{self._max_prompt} of them with each text; request less, or send several requests",
            )
        places = starts_of(len(question.written), kept, starts).astype(np.int32)
        return SchemaPrompt(
            ids,
            places[question.labels],
            np.array(question.thresholds, np.float32),
            np.array(question.roles, np.int32),
            places[question.choices],
            np.array(question.choice_labels, np.int32),
        )


def starts_of(num_words: int, kept: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return int64 [words + 1]: the first token of each word, or of the next one if a word has no tokens."""
    found: npt.NDArray[np.int64] = starts[np.searchsorted(kept, np.arange(num_words + 1))]
    return found


def packed(rows: Sequence[SchemaRow]) -> Features:
    """Pack pieces one after another."""
    prompts = [row.prompt for row in rows]
    return {
        INPUT_IDS.name: Ragged.of([row.ids for row in rows]),
        PIECE.name: Ragged(np.array([row.piece for row in rows], np.int32)),
        WORD_TOKENS.name: Ragged.of([row.word_tokens for row in rows]),
        WORD_SPANS.name: Ragged.of([row.word_spans for row in rows]),
        LABEL_TOKENS.name: Ragged.of([prompt.label_tokens for prompt in prompts]),
        LABEL_THRESHOLDS.name: Ragged.of([prompt.thresholds for prompt in prompts]),
        LABEL_ROLES.name: Ragged.of([prompt.roles for prompt in prompts]),
        CHOICE_TOKENS.name: Ragged.of([prompt.choice_tokens for prompt in prompts]),
        CHOICE_LABELS.name: Ragged.of([prompt.choice_labels for prompt in prompts]),
    }


def load_processor(spec: ModelSpec, directory: Path) -> Gliner2Tokenizer:
    return opened(Gliner2Tokenizer, spec, directory)


def tokenizer_of(directory: Path) -> tokenizers.Tokenizer:
    tokenizer = open_tokenizer(directory)
    missing = [marker for marker in MARKERS if tokenizer.token_to_id(marker) is None]
    if missing:
        raise LoadError(f"{directory / 'tokenizer.json'}: has no {', '.join(missing)}", "corrupt")
    return tokenizer


def opened(kind: type[T], spec: ModelSpec, directory: Path) -> T:
    """Return a processor over the tokenizer in `directory`; LoadError names what its files lack."""
    files, tokenizer = Gliner2Files.read(directory), tokenizer_of(directory)
    longest = min(spec.max_sequence_length, files.longest(MAX_PROMPT))
    return kind(tokenizer, Pieces(files.max_words, longest, overlap=64), min(MAX_PROMPT, longest // 2))
