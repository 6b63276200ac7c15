"""GLiREL: relations, named by labels, between known entities (Boylan et al., 2025).

labels and words → encoder → LSTM → entities → pairs of them × labels → relations
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.checkpoints.files import Fields, has_file, read_fields
from sie_triton.checkpoints.gliner import ENCODER, encoder_of, longest_piece
from sie_triton.contract import (
    Extraction,
    Features,
    Findings,
    Known,
    Label,
    Parameter,
    ParameterValue,
    Part,
    Ragged,
    Relation,
    Rows,
)
from sie_triton.contract.arrays import Ints
from sie_triton.contract.extract import MAX_LABELS
from sie_triton.contract.limits import LIMITS
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, LABEL_THRESHOLDS, LABEL_TOKENS, PIECE, WORD_TOKENS, Tensor
from sie_triton.errors import InputError
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.gliner import MAX_PROMPT
from sie_triton.models.families.shared.labels.words import marked, sample_words
from sie_triton.models.families.shared.thresholds import THRESHOLD
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.tokenizer import open_tokenizer
from sie_triton.models.inputs.words import LabelledWords, Pieces, Words, WordsPrompt, WordsRow, WordTokenizer, packed

CONFIG = "glirel_config.json"

MARKER, SEPARATOR = "[REL]", "[SEP]"

# Tokens that glirel adds to the tokenizer of its encoder, special ones first.
ADDED_SPECIAL, ADDED = ("[FLERT]",), (MARKER, SEPARATOR, "[E]", "[/E]")

# Values that can be served, by key, the default first.
SERVED = {
    "scorer": ("dot",),
    "rel_mode": ("marker",),
    "span_marker_mode": ("markerv1",),
    "subtoken_pooling": ("first",),
    "label_embed_strategy": ("both", "label", "ent_token"),
}


@dataclass(frozen=True, slots=True)
class GlirelFiles:
    """Files of a GLiREL model."""

    directory: Path
    config: Fields
    encoder: Fields
    hidden_size: int
    max_words: int  # read at once
    max_distance: int | None  # in words, from an entity back to an earlier one; None: no limit
    label_strategy: str  # a label's state: that of its first token, of the marker before it, or their mean
    refines_relations: bool
    refines_labels: bool
    refining_factor: int

    @classmethod
    def read(cls, directory: Path) -> "GlirelFiles":
        config = read_fields(directory / CONFIG)
        chosen = {key: config.one_of(key, allowed) for key, allowed in SERVED.items()}
        if config.flag("add_entity_markers", False):
            raise config.unserved("add_entity_markers: models that mark entities in the text cannot be served")
        return cls(
            directory=directory,
            config=config,
            encoder=encoder_of(config, directory),
            hidden_size=config.integer("hidden_size", least=2),
            max_words=config.integer("max_len", 384, least=2),
            max_distance=(
                config.integer("max_entity_pair_distance") if config.has("max_entity_pair_distance") else None
            ),
            label_strategy=chosen["label_embed_strategy"],
            refines_relations=config.flag("refine_relation", False),
            refines_labels=config.flag("refine_prompt", False),
            refining_factor=config.integer("ffn_mul", 4, least=1),
        )

    @property
    def tokenizer(self) -> Path:
        return self.directory / ENCODER

    @property
    def architecture(self) -> str:
        return self.encoder.text("model_type")

    def longest(self, max_prompt: int) -> int:
        """Return the maximum tokens of a piece, including its labels, which have at most `max_prompt` tokens."""
        return longest_piece(self.encoder, self.max_words, max_prompt)


def other_repositories(directory: Path) -> dict[str, str]:
    """Return the directory for the encoder's files → their repository; empty if the files are there."""
    if has_file(directory / ENCODER):
        return {}
    return {ENCODER: read_fields(directory / CONFIG).text("model_name")}


# Maximum entities of a text; the number of pairs is quadratic.
MAX_ENTITIES = 256

KNOWN = Tensor(
    "known",
    "INT32",
    (-1, 5),
    "[entities, 5] number in the item, first and last word in the piece, start and end in the text",
    "known_lengths",
    0,
)
RELATIONS = Tensor(
    "relations",
    "INT32",
    (-1, 7),
    "[relations, 7] numbers of head and tail, start and end of head and of tail, and label",
    "relation_lengths",
)
RELATION_SCORES = Tensor("relation_scores", "FP32", (-1,), "[relations]", RELATIONS.lengths)

TOP_K = Parameter(
    "top_k",
    int,
    minimum=1,
    maximum=MAX_LABELS,
    doc="most relations from one entity to another, best first; default all",
)


Key = tuple[int, int, int]  # head, tail and label


def relations(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Merge the pieces of a text; a relation found in several is returned once, with the highest score."""
    found: dict[Key, Relation] = {}
    for row in rows:
        for values, score in zip(row[RELATIONS.name].tolist(), row[RELATION_SCORES.name].tolist(), strict=True):
            head, tail, head_start, head_end, tail_start, tail_end, label = values
            known = found.get((head, tail, label))
            if known is None or known.score < score:
                found[head, tail, label] = Relation(head_start, head_end, tail_start, tail_end, label, score)
    limit = options.get(TOP_K.name)
    best_first = sorted(sorted(found.items()), key=lambda each: -each[1].score)[: LIMITS.max_candidates]
    ordered = sorted(best_first) if limit is None else _best(best_first, int(limit))
    return Findings(relations=[relation for _, relation in ordered])


def _best(found: Sequence[tuple[Key, Relation]], limit: int) -> Iterator[tuple[Key, Relation]]:
    """Yield at most `limit` relations from one entity to another."""
    told: Counter[tuple[int, int]] = Counter()
    for (head, tail, label), relation in found:
        if told[head, tail] < limit:
            told[head, tail] += 1
            yield (head, tail, label), relation


class Glirel(Family):
    extraction = Extraction((RELATIONS, RELATION_SCORES), relations, "required", entities=True)
    features = (INPUT_IDS, PIECE, WORD_TOKENS, LABEL_TOKENS, LABEL_THRESHOLDS, KNOWN)
    parameters = (THRESHOLD, TOP_K)
    takes_loras = True
    reference_adapters = ("glirel:GLiRELAdapter",)
    files = ("glirel_config.json", "encoder/*.json", "encoder/*.model")

    def recognise(self, directory: Path) -> Recognised | None:
        if not has_file(directory / CONFIG):
            return None
        files = GlirelFiles.read(directory)
        reason = f"glirel_config.json: relations over {files.architecture}"
        return Recognised(reason, self.longest(directory), {}, extracts=True)

    def other_repositories(self, directory: Path) -> Mapping[str, str]:
        return other_repositories(directory)

    def longest(self, directory: Path) -> int:
        return GlirelFiles.read(directory).longest(MAX_PROMPT)

    def sample(self, lengths: Sequence[int]) -> Features:
        """Return features with a few entities of one word each."""
        features = sample_words(lengths, behind=1)
        words = features[WORD_TOKENS.name].lengths
        assert words is not None
        counts = np.minimum(words, 4)
        numbers = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
        known = np.stack([numbers, numbers, numbers, numbers, numbers + 1], 1)
        return {**features, KNOWN.name: Ragged(known, counts.astype(np.int32))}


class GlirelTokenizer(LabelledWords):
    """Tokenizer for rows of the form: marker label marker label … separator word word …

    Neighbouring pieces share half of their words, so that entities up to half a piece apart are in one piece.
    """

    def __init__(self, files: GlirelFiles, max_length: int, max_prompt: int) -> None:
        tokenizer = open_tokenizer(files.tokenizer)
        tokenizer.add_special_tokens(list(ADDED_SPECIAL))
        tokenizer.add_tokens(list(ADDED))
        longest = min(max_length, files.longest(max_prompt))
        pieces = Pieces(files.max_words, longest, files.max_words // 2)
        super().__init__(tokenizer, pieces, min(max_prompt, longest // 2))

    def frame(self, part: Part) -> Frame:
        for i, element in enumerate(part.elements):
            if len(element.known) > MAX_ENTITIES:
                given = len(element.known)
                raise InputError.at(
                    f"entities[{i}]", f"has {given} entities; this model reads at most {MAX_ENTITIES} in one text"
                )
            for number, entity in enumerate(element.known):
                if not element.text[entity.start : entity.end].strip():
                    raise InputError.at(
                        f"entities[{i}]", f"entity {number}: contains only spaces; send the places of words"
                    )
        return super().frame(part)

    def prompt(self, labels: Sequence[Label], words: WordTokenizer) -> WordsPrompt:
        return marked(labels, words, MARKER, SEPARATOR)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        texts = self._words.words([element.text for _, element in framed])
        read = [
            piece
            for (prompt, element), words in zip(framed, texts, strict=True)
            for piece in self._read(prompt, words, _known(element.known, words))
        ]
        rows, known = zip(*read, strict=True)
        return {**packed(rows), KNOWN.name: Ragged.of(known)}

    def _read(self, prompt: WordsPrompt, words: Words, known: Ints) -> Iterator[tuple[WordsRow, Ints]]:
        """Yield the pieces of a text with at least two entities, or else its first piece."""
        within = [(first, end, _within(known, first, end)) for first, end in self._pieces.of(words, self._room(prompt))]
        for number, (first, end, own) in enumerate([each for each in within if len(each[2]) > 1] or within[:1]):
            yield self._row(number, prompt, words, first, end), own


def _known(known: Sequence[Known], words: Words) -> Ints:
    """Return int32 [entities, 5], as KNOWN, with words counted in the text: each entity that covers a word, once."""
    places = np.array(list(dict.fromkeys((each.start, each.end) for each in known)), np.int32).reshape(-1, 2)
    first = np.searchsorted(words.spans[:, 1], places[:, 0], side="right")
    last = np.searchsorted(words.spans[:, 0], places[:, 1], side="left") - 1
    found = np.stack([np.arange(len(places)), first, last, places[:, 0], places[:, 1]], 1).astype(np.int32)
    covering: Ints = found[first <= last]
    return covering


def _within(known: Ints, first: int, end: int) -> Ints:
    """Return the entities inside a piece, with words counted in the piece."""
    own: Ints = known[(known[:, 1] >= first) & (known[:, 2] < end)] - np.array([0, first, first, 0, 0], np.int32)
    return own


def load_processor(spec: ModelSpec, directory: Path) -> GlirelTokenizer:
    return GlirelTokenizer(GlirelFiles.read(directory), spec.max_sequence_length, MAX_PROMPT)
