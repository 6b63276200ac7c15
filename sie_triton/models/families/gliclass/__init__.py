"""GLiClass: classes named by labels, all of which are read with the text at once (Stepanov et al., 2025).

labels and text → encoder → a state for each label, one for the text → scores
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sie_triton.contract import Extraction, Features, Findings, ParameterValue, Ragged, Rows
from sie_triton.contract.tensors import INPUT_IDS, LABEL_THRESHOLDS, LABEL_TOKENS, PIECE, Tensor
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.gliclass.examples import EXAMPLES
from sie_triton.models.families.gliclass.files import USUAL_LENGTH, GliclassFiles, is_gliclass
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
from sie_triton.models.families.shared.label_groups import LABEL_GROUPS, grouped_findings, groups_of
from sie_triton.models.families.shared.thresholds import least_score

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
        if not is_gliclass(directory):
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
