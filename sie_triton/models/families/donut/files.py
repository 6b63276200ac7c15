"""Files of a Donut checkpoint: image preprocessing, maximum answer length, and the tasks that it was trained for."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import ImagePlan, image_fields, resample, scaling
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.resizing import EXACT, Resizing
from sie_triton.errors import LoadError

ENCODER, MODEL_TYPE = "donut-swin", "vision-encoder-decoder"
NEEDED = ("do_resize", "do_thumbnail", "do_pad")

# Task tokens of pretraining.
PRETRAINING = ("<s_iitcdip>", "<s_synthdog>")

START = re.compile(r"<s_([^<>]+)>")


@dataclass(frozen=True, slots=True)
class DonutFiles:
    """Files of a Donut model.

    Pages are made as `plan` says. With `is_aligned`, they are first rotated to the orientation of `plan.shape`. Each
    page becomes `num_patches`. `positions` is the maximum number of tokens of the decoder.
    """

    directory: Path
    plan: ImagePlan
    is_aligned: bool
    num_patches: int
    positions: int

    @classmethod
    def read(cls, directory: Path) -> "DonutFiles":
        config = read_fields(directory / "config.json")
        encoder, decoder = config.fields("encoder"), config.fields("decoder")
        decoder.integer("d_model", 1024, least=1, most=LIMITS.max_width)
        decoder.integer("decoder_layers", 4, least=1, most=LIMITS.max_layers)
        depths = encoder.values.get("depths", [2, 2, 6, 2])
        if not isinstance(depths, list) or not 1 <= len(depths) <= 8:
            raise LoadError(f"{encoder.where}: depths: must be a list of 1 to 8 numbers", "corrupt")
        plan, is_aligned = page_plan(directory)
        stride = encoder.integer("patch_size", 4, least=1, most=LIMITS.max_image_side) * 2 ** (len(depths) - 1)
        height, width = plan.shape
        return cls(
            directory,
            plan,
            is_aligned,
            -(-height // stride) * -(-width // stride),
            decoder.integer("max_position_embeddings", 1024, least=2),
        )


def is_donut(directory: Path) -> bool:
    try:
        config = read_fields(directory / "config.json", required=False)
        is_reader = config.text("model_type", "") == MODEL_TYPE
        return is_reader and config.fields("encoder").text("model_type", "") == ENCODER
    except LoadError:
        return False


def tasks_of(tokens: Iterable[str]) -> tuple[str, ...]:
    """Return the added tokens that begin an answer.

    The others open a field, and each of them has a closing token.

    >>> tasks_of(["<s_docvqa>", "<s_answer>", "</s_answer>", "<yes/>"])
    ('<s_docvqa>',)
    """
    known = set(tokens)
    found = [token for token in known if (name := START.fullmatch(token)) and f"</s_{name[1]}>" not in known]
    return tuple(sorted(found))


def page_plan(directory: Path) -> tuple[ImagePlan, bool]:
    """Read the preprocessing, and whether pages are rotated first; raise LoadError if it cannot be served."""
    fields = image_fields(directory, "DonutImageProcessor", NEEDED)
    if fields.flag("do_center_crop", False):
        raise LoadError(f"{fields.where}: do_center_crop true cannot be served", "unsupported")
    if resample(fields) == 0:
        message = f"{fields.where}: resample 0 cannot be served: the library shrinks with another filter then"
        raise LoadError(f"{message}; supported are 1 to 5", "unsupported")
    size = fields.values["size"]
    # In older files, `size` is a list of width and height.
    turned = Fields(fields.where, {**fields.values, "size": size[::-1] if isinstance(size, list) else size})
    plan = ImagePlan(Resizing.read(turned, (EXACT,)), resample(fields), None, **scaling(fields))
    return plan, fields.flag("do_align_long_axis", False)
