"""Files of a Donut checkpoint: image preprocessing, maximum answer length, and the tasks that it was trained for."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import (
    BILINEAR,
    FILTERS,
    MAX_SIDE,
    ImagePlan,
    image_fields,
    scaling,
)
from sie_triton.checkpoints.modules import MAX_LAYERS, MAX_WIDTH
from sie_triton.errors import LoadError

ENCODER, MODEL_TYPE = "donut-swin", "vision-encoder-decoder"
NEEDED = ("do_resize", "do_thumbnail", "do_pad")

# The defaults of DonutImageProcessor.
USUAL_SIZE = {"height": 2560, "width": 1920}
USUAL_MEAN = [0.5, 0.5, 0.5]

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
        """Read the files; raise LoadError naming the one that cannot be used."""
        config = read_fields(directory / "config.json")
        encoder, decoder = config.fields("encoder"), config.fields("decoder")
        decoder.integer("d_model", 1024, least=1, most=MAX_WIDTH)
        decoder.integer("decoder_layers", 4, least=1, most=MAX_LAYERS)
        depths = encoder.values.get("depths", [2, 2, 6, 2])
        if not isinstance(depths, list) or not 1 <= len(depths) <= 8:
            raise LoadError(f"{encoder.where}: depths: must be a list of 1 to 8 numbers", "corrupt")
        plan, is_aligned = _pages(directory)
        stride = encoder.integer("patch_size", 4, least=1, most=MAX_SIDE) * 2 ** (len(depths) - 1)
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


def _pages(directory: Path) -> tuple[ImagePlan, bool]:
    found = image_fields(directory, {"image_mean": USUAL_MEAN, "image_std": USUAL_MEAN}, NEEDED)
    if found.flag("do_center_crop", False):
        raise LoadError(f"{found.where}: do_center_crop true cannot be served", "unsupported")
    plan = ImagePlan(
        size=_size(found),
        shortest_edge=0,
        resample=found.integer("resample", BILINEAR, most=FILTERS - 1),
        crop=None,
        **scaling(found),
    )
    return plan, found.flag("do_align_long_axis", False)


def _size(fields: Fields) -> tuple[int, int]:
    """Return height and width; in older files, `size` is a list of width and height."""
    value = fields.values.get("size")
    if isinstance(value, list) and len(value) == 2:
        value = {"width": value[0], "height": value[1]}
    size = Fields.of(f"{fields.where}: size", USUAL_SIZE if value is None else value)
    height, width = (size.integer(name, least=1, most=MAX_SIDE) for name in ("height", "width"))
    return height, width
