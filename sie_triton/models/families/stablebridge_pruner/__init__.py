"""Pruning and highlighting of passages: a reranker, with a head that scores each token of the passage.

query and passage → reranker → a score for the pair, one for each token → spans that are kept, or not

The query of extract is the request's instruction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers
from annotated_types import Ge, MinLen

from sie_triton.checkpoints.cross_encoder import CrossEncoderFiles, is_cross_encoder
from sie_triton.checkpoints.files import has_file, inside, only_pickled
from sie_triton.contract import (
    Entity,
    Extraction,
    Features,
    Findings,
    Parameter,
    ParameterValue,
    Part,
    Ragged,
    Rows,
    place,
)
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, PIECE, SCORES, TOKEN_TYPE_IDS, Tensor
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Options, Recognised, TextFamily
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.growth import check_whole
from sie_triton.models.inputs.prompt import Prompted
from sie_triton.models.inputs.windows import TextWindow, WindowProcessor, packed, windows

PASSAGE = Tensor(
    "passage",
    "INT32",
    (-1, 4),
    "[tokens, 4] index in the piece, index in the passage, start and end in the text",
    "passage_lengths",
    0,
)
KEEP_SCORES = Tensor("keep_scores", "FP32", (-1,), "[tokens] scores of the passage tokens", PASSAGE.lengths)

PRUNE = Parameter("prune_threshold", float, minimum=0, maximum=1, doc="minimum score of kept text; default 0.6")
HIGHLIGHT = Parameter(
    "highlight_threshold", float, minimum=0, maximum=1, doc="minimum score of highlighted text; default 0.9"
)

# A span gets the highest label whose threshold its tokens reach.
KINDS = ("pruned", "kept", "highlight")


@dataclass(frozen=True)
class PrunerOptions(Options):
    """Options of the pruner. Sizes that are None are those of the files."""

    pruning_head_path: str = ""  # a local directory that may have the file, beside the model's
    pruning_head_file: Annotated[str, MinLen(1)] = "best.pt"  # as safetensors, or converted to them
    hidden_size: Annotated[int, Ge(1)] | None = None
    intermediate_size: Annotated[int, Ge(1)] | None = None


def judged(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Return spans of adjacent tokens with the same label, each with the mean of their scores.

    If two windows score a token or the passage, the larger score is used.
    """
    tokens = np.concatenate([row[PASSAGE.name] for row in rows])
    first, scores = best_by_number(tokens[:, 1], np.concatenate([row[KEEP_SCORES.name] for row in rows]))
    spans = tokens[first, 2:]
    is_read = spans[:, 1] > 0
    spans, scores = spans[is_read], scores[is_read]
    least = [float(options.get(PRUNE.name, 0.6)), float(options.get(HIGHLIGHT.name, 0.9))]
    kinds = np.where(scores >= least[1], 2, np.where(scores >= least[0], 1, 0))
    found = [
        Entity(int(spans[a, 0]), int(spans[a:b, 1].max()), KINDS[kinds[a]], float(scores[a:b].mean(dtype=np.float64)))
        for a, b in runs(spans, kinds)
    ]
    kept = [each for each in found if each.label != KINDS[0]]
    data = {
        "score": max(float(row[SCORES.name]) for row in rows),
        "compression": 1 - len(kept) / max(len(found), 1),
        "num_kept": len(kept),
        "num_spans": len(found),
        "kept": [place(each.start, each.end) for each in kept],
    }
    return Findings(found, data=data)


def best_by_number(
    numbers: Ints, scores: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]]:
    """Return the index of the first occurrence of each number, in ascending order of numbers, and its best score.

    >>> best_by_number(np.array([0, 1, 1, 2]), np.array([0.1, 0.2, 0.7, 0.3], np.float32))[0].tolist()
    [0, 1, 3]
    """
    found, first, which = np.unique(numbers, return_index=True, return_inverse=True)
    best = np.full(len(found), -np.inf, np.float32)
    np.maximum.at(best, which, scores)
    return first, best


def runs(spans: Ints, kinds: npt.ArrayLike) -> list[tuple[int, int]]:
    """Return start and end of each run of tokens of one kind, with at most one character between neighbours.

    >>> runs(np.array([[0, 3], [4, 7], [9, 12], [12, 14]]), [1, 1, 1, 2])
    [(0, 2), (2, 3), (3, 4)]
    """
    if not len(spans):
        return []
    ends = np.maximum.accumulate(spans[:, 1])
    apart = spans[1:, 0] > ends[:-1] + 1
    cuts = np.flatnonzero(apart | (np.diff(np.asarray(kinds)) != 0)) + 1
    return list(pairwise([0, *cuts.tolist(), len(spans)]))


class StablebridgePruner(TextFamily):
    scores_pairs = True
    extraction = Extraction((PASSAGE, KEEP_SCORES, SCORES), judged, "")
    features = (INPUT_IDS, TOKEN_TYPE_IDS, PIECE, PASSAGE)
    parameters = (PRUNE, HIGHLIGHT)
    options = PrunerOptions
    takes_loras = True
    reference_adapters = ("stablebridge_pruner:StablebridgePrunerAdapter",)
    files = tuple(f"{name}.{suffix}" for name in ("best", "pruning_head") for suffix in ("pt", "safetensors"))

    def recognise(self, directory: Path) -> Recognised | None:
        named = next((name for name in self.files if has_file(directory / name)), None)
        if named is None or not is_cross_encoder(directory):
            return None
        files = CrossEncoderFiles.read(directory)
        return Recognised(
            f"{named} beside {files.chain}",
            files.text.max_sequence_length,
            {},
            scores=True,
            extracts=True,
            options={"pruning_head_file": named},
            weights=(files.text.transformer,),
        )


def head_file(directory: Path, options: PrunerOptions) -> Path:
    """Return the path of the head's weights; raise LoadError if there is none."""
    where = "pruning_head_file"
    homes = [directory, *([Path(options.pruning_head_path)] if options.pruning_head_path else [])]
    files = [inside(home, options.pruning_head_file, where) for home in homes]
    found = next(filter(has_file, (path.with_suffix(".safetensors") for path in files)), None)
    if found is not None:
        return found
    if pickled := next(filter(has_file, files), None):
        raise only_pickled(str(pickled.parent), [pickled.name])
    message = f"{files[0].with_suffix('.safetensors').name} is missing in {' and '.join(map(str, homes))}"
    raise LoadError(f"{message}; put the weights of the pruning head there", "not found")


class Query(NamedTuple):
    """The query's tokens."""

    ids: Ints
    is_scored: bool  # the passage is read once, truncated if it is too long; else in windows, and its tokens are scored


class PassageTokenizer(WindowProcessor):
    pairs = True

    def __init__(self, tokenizer: tokenizers.Tokenizer, max_length: int) -> None:
        super().__init__(tokenizer, max_length)
        self._special = np.concatenate([ids for ids, _ in self._around.special])

    def frame(self, part: Part) -> Frame:
        said, query = part.instruction or "", part.query
        # Joined as in SIE.
        asked = said if query is None else f"{said} {query}" if said else query
        return Prompted(lambda: Query(self._token_ids([asked])[0], query is not None), len(asked))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        check_whole((text for _, text in framed), self._tokenizer)
        encodings = self._tokenizer.encode_batch([text for _, text in framed], add_special_tokens=False)
        read = [
            row
            for (query, _), encoding in zip(framed, encodings, strict=True)
            for row in (self._scored(query, encoding) if query.is_scored else self._judged(query, encoding))
        ]
        rows, passages = zip(*read, strict=True)
        return {**packed(rows), PASSAGE.name: Ragged.of(passages)}

    def _scored(self, query: Query, passage: tokenizers.Encoding) -> list[tuple[TextWindow, Ints]]:
        ids = np.array(passage.ids, np.int32)
        of_query, of_passage = both_cut(len(query.ids), len(ids), self._room)
        row = self._around.row(0, query.ids[:of_query], ids[:of_passage])
        return [(row, np.empty((0, 4), np.int32))]

    def _judged(self, query: Query, passage: tokenizers.Encoding) -> list[tuple[TextWindow, Ints]]:
        asked, ids = query.ids[: self._room // 2], np.array(passage.ids, np.int32)
        offsets = np.array(passage.offsets, np.int32).reshape(-1, 2)
        # A separator written in a passage is not one of its words.
        offsets[np.isin(ids, self._special)] = 0
        before = len(asked) + sum(len(special) for special, _ in self._around.special[:2])
        rows = []
        for number, (first, end) in enumerate(windows(len(ids), self._room - len(asked))):
            numbers = np.arange(first, end, dtype=np.int32)
            tokens = np.column_stack([numbers - first + before, numbers, offsets[first:end]])
            rows.append((self._around.row(number, asked, ids[first:end]), tokens.astype(np.int32)))
        return rows


def both_cut(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens remain of two texts that share `room`; the longer is truncated first, as in tokenizers.

    >>> both_cut(3, 4, 10), both_cut(3, 40, 10), both_cut(40, 30, 9)
    ((3, 4), (3, 7), (5, 4))
    """
    if first + second <= room:
        return first, second
    less = min(first, second)
    more = less if less > room else max(less, room - less)
    if less + more > room:
        less, more = room // 2, room // 2 + room % 2
    return (more, less) if first > second else (less, more)


def load_processor(spec: ModelSpec, directory: Path) -> PassageTokenizer:
    return PassageTokenizer.load(directory, spec.max_sequence_length)
