"""Grounding DINO: objects of any kind that a label names (Liu et al., 2023).

image → resized → Swin → features of several sizes ┐
                                                   ├→ layers that read both → the best places → decoder → boxes
"label. label." → BERT, each label by itself ──────┘      and the score of each with every token of the labels
"""

from dataclasses import dataclass, replace
from pathlib import Path

from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.image_processor import ImagePlan, image_fields, resample, scaling
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.resizing import BOTH_EDGES, EXACT, WITHIN, Resizing
from sie_triton.checkpoints.towers import model_type
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
from sie_triton.models.families.base import Family, Recognised
from sie_triton.models.families.shared.objects import EXTRACTION, score
from sie_triton.models.families.shared.thresholds import threshold


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
