"""GLiREL: relations, named by labels, between known entities (Boylan et al., 2025).

labels and words → encoder → LSTM → entities → pairs of them × labels → relations
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from sie_triton.contract import Extraction, Features, Findings, Parameter, ParameterValue, Ragged, Relation, Rows
from sie_triton.contract.extract import MAX_LABELS
from sie_triton.contract.limits import LIMITS
from sie_triton.contract.tensors import INPUT_IDS, LABEL_THRESHOLDS, LABEL_TOKENS, PIECE, WORD_TOKENS, Tensor
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.gliner import MAX_PROMPT
from sie_triton.models.families.glirel.files import GlirelFiles, is_glirel, other_repositories
from sie_triton.models.families.shared.labels.words import sample_words
from sie_triton.models.families.shared.thresholds import THRESHOLD

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
        if not is_glirel(directory):
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
