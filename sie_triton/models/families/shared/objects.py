"""Tensors, findings and processors of families that detect objects in images by labels. No torch."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Extraction, Findings, Label, Object, Parameter, ParameterValue, Part, Rows
from sie_triton.contract.arrays import item_lengths
from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import Tensor
from sie_triton.models.families.shared.images import ImageProcessor
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.prompt import Prompted
from sie_triton.models.inputs.words import KEPT_PROMPTS

BOXES = Tensor("boxes", "FP32", (-1, 4), "[objects, 4] left, top, right, bottom in pixels", "object_lengths")
OBJECT_LABELS = Tensor("object_labels", "INT32", (-1,), "[objects]", BOXES.lengths)
OBJECT_SCORES = Tensor("object_scores", "FP32", (-1,), "[objects]", BOXES.lengths)


class Detections(NamedTuple):
    """Objects in one image: `boxes` float32 [objects, 4]; `labels` int32 and `scores` float32, both [objects]."""

    boxes: npt.NDArray[np.float32]
    labels: npt.NDArray[np.int32]
    scores: npt.NDArray[np.float32]


def tensors(images: Sequence[Detections]) -> Rows:
    return {
        BOXES.name: np.concatenate([each.boxes for each in images]).astype(np.float32),
        OBJECT_LABELS.name: np.concatenate([each.labels for each in images]).astype(np.int32),
        OBJECT_SCORES.name: np.concatenate([each.scores for each in images]).astype(np.float32),
        BOXES.lengths: item_lengths(each.scores for each in images),
    }


def objects(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Return the objects of an image in the order in which transformers returns them."""
    (row,) = rows
    found = zip(
        row[BOXES.name].tolist(), row[OBJECT_LABELS.name].tolist(), row[OBJECT_SCORES.name].tolist(), strict=True
    )
    return Findings(objects=[Object(tuple(box), label, score) for box, label, score in found])


EXTRACTION = Extraction((BOXES, OBJECT_LABELS, OBJECT_SCORES), objects, "required")


def score(name: str, doc: str) -> Parameter:
    """Return the parameter for a score, under SIE's name for it."""
    return Parameter(name, float, minimum=0, maximum=1, doc=doc)


def corners(boxes: npt.NDArray[np.float32], width: float, height: float) -> npt.NDArray[np.float32]:
    """Convert boxes, as center and size relative to the image, to left, top, right and bottom in pixels, [objects, 4].

    >>> corners(np.array([[0.5, 0.5, 0.5, 1.0]]), 8, 4).tolist()
    [[2.0, 0.0, 6.0, 4.0]]
    """
    middles, sizes = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([middles - sizes / 2, middles + sizes / 2], 1) * [width, height, width, height]


P = TypeVar("P")


class LabelledImages(ImageProcessor, Generic[P]):
    """Processor of images with labels; `encode` gets a prompt and a PreparedImage for each item."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._kept = lru_cache(KEPT_PROMPTS)(self.prompt)

    @abstractmethod
    def prompt(self, labels: tuple[Label, ...], template: str) -> P:
        """Return the labels in the form that the model reads; raise InputError naming a label."""

    def template(self, part: Part) -> str:
        """Return the template into which labels are put in place of {}; raise InputError if the request's is wrong."""
        return "{}"

    def frame(self, part: Part) -> Frame:
        super().frame(part)
        labels, template = tuple(part.labels), self.template(part)
        return Prompted(lambda: self._kept(labels, template), 0)
