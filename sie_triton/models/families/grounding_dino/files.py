"""Files of Grounding DINO as transformers saves it."""

from dataclasses import dataclass, replace
from pathlib import Path

from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.image_processor import ImagePlan, image_fields, resample, scaling
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.resizing import BOTH_EDGES, EXACT, WITHIN, Resizing
from sie_triton.errors import LoadError

# Maximum length of the longer edge, in files where `size` is a number.
LONGEST_EDGE = 1333

# Stride of the backbone's first feature map that the model uses.
FIRST_STRIDE = 8


@dataclass(frozen=True, slots=True)
class DinoFiles:
    """Files of a Grounding DINO model.

    `longest_text` limits the tokens of all labels together. The model finds at most `num_queries` objects, chosen among
    the places of `num_levels` feature maps, each half as large as the one before.
    """

    directory: Path
    plan: ImagePlan
    longest_text: int
    num_queries: int
    num_levels: int

    @classmethod
    def read(cls, directory: Path) -> "DinoFiles":
        config = read_fields(directory / "config.json")
        config.fields("backbone_config").one_of("model_type", ("swin",))
        if config.flag("use_timm_backbone", False):
            raise LoadError(f"{config.where}: use_timm_backbone true cannot be served", "unsupported")
        for name, most in (
            ("encoder_layers", LIMITS.max_layers),
            ("decoder_layers", LIMITS.max_layers),
            ("d_model", LIMITS.max_width),
        ):
            config.integer(name, 6, least=1, most=most)
        if not config.flag("two_stage", True):
            raise LoadError(f"{config.where}: two_stage false cannot be served", "unsupported")
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
        strides = [FIRST_STRIDE << level for level in range(self.num_levels)]
        return sum(-(-height // stride) * -(-width // stride) for stride in strides)


def image_plan(directory: Path) -> ImagePlan:
    """Read the preprocessing; raise LoadError if it cannot be served."""
    fields = image_fields(directory, "GroundingDinoImageProcessor")
    if fields.has("pad_size"):
        raise LoadError(f"{fields.where}: pad_size cannot be served", "unsupported")
    if isinstance(fields.values["size"], (int, float)):
        edges = {"shortest_edge": fields.values["size"], "longest_edge": fields.values.get("max_size", LONGEST_EDGE)}
        fields = replace(fields, values={**fields.values, "size": edges})
    resizing = Resizing.read(fields, (BOTH_EDGES, EXACT, WITHIN))
    return ImagePlan(resizing, resample(fields), None, **scaling(fields))
