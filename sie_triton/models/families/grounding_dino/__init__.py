"""Grounding DINO: objects of any kind that a label names (Liu et al., 2023).

image → resized → Swin → features of several sizes ┐
                                                   ├→ layers that read both → the best places → decoder → boxes
"label. label." → BERT, each label by itself ──────┘      and the score of each with every token of the labels
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.image_processor import ImagePlan, image_fields, resample, scaling
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.resizing import BOTH_EDGES, EXACT, WITHIN, Resizing
from sie_triton.checkpoints.towers import model_type
from sie_triton.contract import Features, Label, Ragged
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.contract.tensors import (
    IMAGE_SIZES,
    INPUT_IDS,
    LABEL_THRESHOLDS,
    LENGTHS,
    ORIGINAL_SIZES,
    PIXELS,
    READ,
    Tensor,
)
from sie_triton.errors import InputError
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.shared.images import original_sizes
from sie_triton.models.families.shared.labels.ids import thresholds_of
from sie_triton.models.families.shared.objects import EXTRACTION, LabelledImages, score
from sie_triton.models.families.shared.thresholds import threshold
from sie_triton.models.inputs.pixels import packed_pixels
from sie_triton.models.inputs.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class DinoFiles:
    """Files of a Grounding DINO model."""

    directory: Path
    plan: ImagePlan
    longest_text: int  # in tokens, of all labels together
    num_queries: int  # maximum number of objects, chosen among the places of the feature maps
    num_levels: int  # of feature maps, each half as large as the one before

    @classmethod
    def read(cls, directory: Path) -> "DinoFiles":
        config = read_fields(directory / "config.json")
        config.fields("backbone_config").one_of("model_type", ("swin",))
        if config.flag("use_timm_backbone", False):
            raise config.unserved("use_timm_backbone true cannot be served")
        for name, most in (
            ("encoder_layers", LIMITS.max_layers),
            ("decoder_layers", LIMITS.max_layers),
            ("d_model", LIMITS.max_width),
        ):
            config.integer(name, 6, least=1, most=most)
        if not config.flag("two_stage", True):
            raise config.unserved("two_stage false cannot be served")
        plan = image_plan(directory)
        longest_text = min(
            config.integer("max_text_len", 256, least=4),
            config.fields("text_config").integer("max_position_embeddings", 512, least=4),
        )
        num_queries = config.integer("num_queries", 900, least=1, most=100_000)
        levels = config.integer("num_feature_levels", 4, least=1, most=8)
        return cls(directory, plan, longest_text, num_queries, levels)

    @property
    def largest(self) -> tuple[int, int]:
        """Shorter and longer edge of the largest image that the model reads."""
        edges = self.plan.resizing.values
        return min(edges), max(edges)

    def num_places(self, height: int, width: int) -> int:
        """Return the number of places in the feature maps of an image of this size."""
        strides = [8 << level for level in range(self.num_levels)]  # the first map that is used has 8
        return sum(-(-height // stride) * -(-width // stride) for stride in strides)


def image_plan(directory: Path) -> ImagePlan:
    """Read the preprocessing; raise LoadError if it cannot be served."""
    fields = image_fields(directory, "GroundingDinoImageProcessor")
    if fields.has("pad_size"):
        raise fields.unserved("pad_size cannot be served")
    if isinstance(fields.values["size"], (int, float)):
        edges = {"shortest_edge": fields.values["size"], "longest_edge": fields.values.get("max_size", 1333)}
        fields = replace(fields, values={**fields.values, "size": edges})
    resizing = Resizing.read(fields, (BOTH_EDGES, EXACT, WITHIN))
    return ImagePlan(resizing, resample(fields), None, **scaling(fields))


USUAL_SCORE = USUAL_TEXT_SCORE = 0.25

BOX_THRESHOLD = score("box_threshold", "SIE's name for threshold, which takes precedence")
TEXT_THRESHOLD = score(
    "text_threshold",
    f"minimum score of words in an object's label; default {USUAL_TEXT_SCORE:g}",
)

# 0 for tokens between labels.
TOKEN_LABELS = Tensor("token_labels", "INT32", (-1,), "[tokens] number of the token's label, from 1", LENGTHS.name, 0)

# Side of a patch, in pixels, for an image's cost in tokens: about that of a ViT.
PATCH = 16


class GroundingDino(Family):
    inputs = ("image",)
    unread_inputs = ("text",)
    extraction = EXTRACTION
    features = (READ, PIXELS, IMAGE_SIZES, ORIGINAL_SIZES, INPUT_IDS, TOKEN_LABELS, LABEL_THRESHOLDS)
    parameters = (threshold(USUAL_SCORE), BOX_THRESHOLD, TEXT_THRESHOLD)
    reference_adapters = ("grounding_dino:GroundingDINOAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if model_type(directory) != "grounding-dino":
            return None
        files = DinoFiles.read(directory)
        shorter, longer = files.largest
        reason = (
            f"config.json: grounding-dino, images of up to {shorter} × {longer}, {files.num_queries} places in each"
        )
        return Recognised(reason, files.longest_text, {}, extracts=True, weights=(directory,))


def num_read(height: int, width: int) -> int:
    """Return the cost of an image of this size, in tokens.

    >>> num_read(800, 1066)
    3350
    """
    return -(-height // PATCH) * -(-width // PATCH)


WORD = re.compile(r"\w")


class Text(NamedTuple):
    """The text of all labels: `ids` and `labels` int32 [tokens], `thresholds` float32 [labels]."""

    ids: Ints
    labels: Ints
    thresholds: npt.NDArray[np.float32]


class DinoProcessor(LabelledImages[Text]):
    """Processor for texts of the form: label. label. …"""

    def __init__(self, files: DinoFiles, runtime: Runtime) -> None:
        super().__init__(runtime)
        self._files = files
        self._tokenizer = open_tokenizer(files.directory)
        self._tokenizer.no_truncation()

    def prompt(self, labels: tuple[Label, ...], template: str) -> Text:
        texts = [f"{label.read.strip().lower()}." for label in labels]
        encoding = self._tokenizer.encode(" ".join(texts))
        if len(encoding.ids) > self._files.longest_text:
            raise InputError.at(
                "labels",
                f"have {len(encoding.ids)} tokens; this model reads at most {self._files.longest_text} for "
                "all labels of a request; send fewer or shorter labels",
            )
        whole = " ".join(texts)
        ends = np.cumsum([len(text) + 1 for text in texts]) - 1
        numbers = [
            1 + int(np.searchsorted(ends, start, side="right")) if WORD.search(whole[start:end]) else 0
            for start, end in encoding.offsets
        ]
        for number, label in enumerate(labels, 1):
            if number not in numbers:
                raise InputError.at(
                    "labels", f"{label.read[:80]!r} contains no word that this model reads; send another"
                )
        return Text(np.array(encoding.ids, np.int32), np.array(numbers, np.int32), thresholds_of(labels))

    def pixels(self, image: "Image", where: str) -> Any:
        height, width = self._files.plan.resizing.size(image.height, image.width)
        if self._files.num_places(height, width) < self._files.num_queries:
            raise InputError.at(
                where,
                f"has {image.width} × {image.height} pixels, resized to {width} × {height}, which is too "
                f"narrow for the model's {self._files.num_queries} places; send a less narrow image",
            )
        return np.asarray(image.resize((width, height), resample=self._files.plan.resample))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        texts, pictures = zip(*framed, strict=True)
        return {
            READ.name: Ragged(np.array([num_read(*picture.pixels.shape[:2]) for picture in pictures], np.int32)),
            **packed_pixels([picture.pixels for picture in pictures]),
            **original_sizes(pictures),
            INPUT_IDS.name: Ragged.of([text.ids for text in texts]),
            TOKEN_LABELS.name: Ragged.of([text.labels for text in texts]),
            LABEL_THRESHOLDS.name: Ragged.of([text.thresholds for text in texts]),
        }


def load_processor(spec: ModelSpec, directory: Path) -> DinoProcessor:
    return DinoProcessor(DinoFiles.read(directory), spec.runtime)
