"""GLiNER2.5-Decide and GLiGuard: GLiNER2 checkpoints whose labels are the answers to questions, not entities.

questions and words → encoder → a logit for each answer → classes
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from sie_triton.contract import Extraction, Findings, Label, Parameter, ParameterValue, Part, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.base import Recognised
from sie_triton.models.families.gliner2 import Gliner2, Gliner2Tokenizer, opened
from sie_triton.models.families.gliner2.checked import LIMITS
from sie_triton.models.families.gliner2.request import ClassificationTask, ExtractionRequest
from sie_triton.models.families.gliner2.tensors import CLASS_SCORES, COMPUTED
from sie_triton.models.families.shared.classes import IS_MULTI, THRESHOLD, TYPE, is_multi, ranked_classes
from sie_triton.models.families.shared.label_groups import (
    LABEL_GROUPS,
    grouped_findings,
    groups_of,
    labels_or_groups,
)
from sie_triton.models.families.shared.thresholds import least_score

TASK = Parameter(
    "classification_task",
    str,
    max_characters=LIMITS.max_name_characters,
    doc="question that the labels answer; default: label",
)


def questions_of(labels: Sequence[Label], options: Mapping[str, ParameterValue]) -> tuple[ClassificationTask, ...]:
    """Return a question for each group or, without groups, for the labels; InputError unless the request has one."""
    groups, multi = labels_or_groups(labels, options), is_multi(options, False)
    if groups:
        return tuple(ClassificationTask(group.name, group.labels, multi) for group in groups)
    return (ClassificationTask(str(options.get(TASK.name, "label")), tuple(labels), multi),)


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Return the answers; of several pieces, a single answer is that of the piece that is surest of it."""
    groups, multi = groups_of(options), is_multi(options, False)
    scores = np.stack([row[CLASS_SCORES.name] for row in rows]).astype(np.float64)
    ends = np.cumsum([len(group.labels) for group in groups])[:-1].tolist()
    merged = [part.max(0) if multi else part[part.max(1).argmax()] for part in np.split(scores, ends, axis=1)]
    if groups:
        return grouped_findings(groups, merged, least_score(options, 0), multi)
    return ranked_classes(range(scores.shape[1]), merged[0], options)


class Gliner2Decide(Gliner2):
    extraction = Extraction(COMPUTED, findings, "optional")
    parameters = (THRESHOLD, IS_MULTI, TYPE, LABEL_GROUPS, TASK)
    reference_adapters = ("gliner2.decide:GLiNER2DecideAdapter",)
    served_elsewhere: ClassVar[Mapping[str, str]] = {}
    not_served: ClassVar = {"fastino/GLiNER2.5-multi-Decide": "its architecture is boundary; use gliner2_library"}

    def recognise(self, directory: Path) -> Recognised | None:
        """Return None: the files are those of any GLiNER2 model."""
        return None


class DecideTokenizer(Gliner2Tokenizer):
    def _asked(self, part: Part) -> tuple[ExtractionRequest, tuple[Label, ...]]:
        return ExtractionRequest(tasks=questions_of(part.labels, part.options)), ()


def load_processor(spec: ModelSpec, directory: Path) -> DecideTokenizer:
    return opened(DecideTokenizer, spec, directory)
