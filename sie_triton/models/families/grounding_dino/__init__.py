"""Grounding DINO: objects of any kind that a label names (Liu et al., 2023).

image → resized → Swin → features of several sizes ┐
                                                   ├→ layers that read both → the best places → decoder → boxes
"label. label." → BERT, each label by itself ──────┘      and the score of each with every token of the labels
"""

from pathlib import Path

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
from sie_triton.models.families.grounding_dino.files import DinoFiles
from sie_triton.models.families.shared.objects import EXTRACTION, score
from sie_triton.models.families.shared.thresholds import threshold

USUAL_SCORE = USUAL_TEXT_SCORE = 0.25

BOX_THRESHOLD = score("box_threshold", "SIE's name for threshold, which takes precedence")
TEXT_THRESHOLD = score(
    "text_threshold",
    f"minimum score for a word to count in the choice of an object's label; default {USUAL_TEXT_SCORE:g}",
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
