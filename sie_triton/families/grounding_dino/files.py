"""Files of Grounding DINO as transformers saves it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

# Defaults of the image processor.
USUAL: Mapping[str, Any] = {
    "size": {"shortest_edge": 800, "longest_edge": 1333},
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
LONGEST_EDGE = 1333

# Stride of the backbone's first feature map that the model uses.
FIRST_STRIDE = 8


@dataclass(frozen=True, slots=True)
class DinoFiles:
    """Files of a Grounding DINO model.

    An image is resized until its shorter edge is `shortest_edge`, or until its longer edge is `longest_edge` if that
    comes first; if `plan.size` is set, the image is resized to it. `longest_text` limits the tokens of all labels
    together. The model finds at most `num_queries` objects, chosen among the places of `num_levels` feature maps, each
    half as large as the one before.
    """

    directory: Path
    plan: ImagePlan
    longest_edge: int
    longest_text: int
    num_queries: int
    num_levels: int

    @classmethod
    def read(cls, directory: Path) -> "DinoFiles":
        """Read the files; raise LoadError naming the one that cannot be used."""
        config = read_fields(directory / "config.json")
        config.fields("backbone_config").one_of("model_type", ("swin",))
        if config.flag("use_timm_backbone", False):
            raise LoadError(f"{config.where}: use_timm_backbone true cannot be served", "unsupported")
        for name, most in (("encoder_layers", MAX_LAYERS), ("decoder_layers", MAX_LAYERS), ("d_model", MAX_WIDTH)):
            config.integer(name, 6, least=1, most=most)
        if not config.flag("two_stage", True):
            raise LoadError(f"{config.where}: two_stage false cannot be served", "unsupported")
        plan, longest_edge = _plan(directory)
        longest_text = min(
            config.integer("max_text_len", 256, least=4),
            config.fields("text_config").integer("max_position_embeddings", 512, least=4),
        )
        num_queries = config.integer("num_queries", 900, least=1, most=100_000)
        levels = config.integer("num_feature_levels", 4, least=1, most=8)
        return cls(directory, plan, longest_edge, longest_text, num_queries, levels)

    @property
    def largest(self) -> tuple[int, int]:
        """Shorter and longer edge of the largest image that the model reads."""
        if self.plan.size is not None:
            return min(self.plan.size), max(self.plan.size)
        return self.plan.shortest_edge, self.longest_edge

    def resized(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width after resizing, as transformers computes them.

        The longest edge applies only if the shortest edge alone would exceed it.
        """
        if self.plan.size is not None:
            return self.plan.size
        low, high = min(height, width), max(height, width)
        edge = float(self.plan.shortest_edge)
        if high / low * edge > self.longest_edge:
            edge = self.longest_edge * low / high
        if low == round(edge):
            return height, width
        other = int(edge * high / low)
        return (other, round(edge)) if width < height else (round(edge), other)

    def num_places(self, height: int, width: int) -> int:
        """Return the number of places in the feature maps of an image of this size."""
        strides = [FIRST_STRIDE << level for level in range(self.num_levels)]
        return sum(-(-height // stride) * -(-width // stride) for stride in strides)


def _plan(directory: Path) -> tuple[ImagePlan, int]:
    fields = image_fields(directory, USUAL)
    if fields.has("pad_size"):
        raise LoadError(f"{fields.where}: pad_size cannot be served", "unsupported")
    size, shortest, longest = _size(fields)
    plan = ImagePlan(
        size=size,
        shortest_edge=shortest,
        resample=fields.integer("resample", BILINEAR, most=FILTERS - 1),
        crop=None,
        **scaling(fields),
    )
    return plan, longest


def _size(fields: Fields) -> tuple[tuple[int, int] | None, int, int]:
    """Return height and width, or None, and the shortest and the longest edge."""
    if isinstance(fields.values["size"], (int, float)):
        longest = fields.integer("max_size", LONGEST_EDGE, least=1, most=MAX_SIDE)
        return None, fields.integer("size", least=1, most=MAX_SIDE), longest
    size = fields.fields("size")
    if size.has("height"):
        return tuple(size.integer(edge, least=1, most=MAX_SIDE) for edge in ("height", "width")), 0, 0  # type: ignore[return-value]
    shortest, longest = (size.integer(edge, least=1, most=MAX_SIDE) for edge in ("shortest_edge", "longest_edge"))
    return None, shortest, longest
