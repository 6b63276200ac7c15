"""Files of OWL-ViT and OWLv2 as transformers saves them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import ImagePlan, image_fields, resample, scaling
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.resizing import EXACT, Resizing
from sie_triton.errors import LoadError

# By model type: class of the image processor, and default side of a patch in pixels.
CLASSES: Mapping[str, tuple[str, int]] = {"owlvit": ("OwlViTImageProcessor", 32), "owlv2": ("Owlv2ImageProcessor", 16)}


@dataclass(frozen=True, slots=True)
class OwlFiles:
    """Files of an OWL model.

    `longest_text` limits the tokens of a label. An image becomes `num_patches`. With `pads_to_square`, an image keeps
    its aspect ratio.
    """

    directory: Path
    name: str
    plan: ImagePlan
    longest_text: int
    num_patches: int

    @property
    def pads_to_square(self) -> bool:
        return self.name == "owlv2"

    @classmethod
    def read(cls, directory: Path) -> "OwlFiles":
        config = read_fields(directory / "config.json")
        name = config.one_of("model_type", ("owlv2", "owlvit"))
        usual, usual_patch = CLASSES[name]
        text, vision = config.fields("text_config"), config.fields("vision_config")
        for tower in (text, vision):
            _check(tower)
        plan = square_plan(directory, usual) if name == "owlv2" else ImagePlan.read(directory, usual)
        side = vision.integer("image_size", 768, least=1)
        patch = vision.integer("patch_size", usual_patch, least=1, most=side)
        if plan.shape != (side, side):
            made = " × ".join(map(str, plan.shape))
            message = f"{directory}: images are resized to {made}, but config.json needs {side} × {side}"
            raise LoadError(message, "unsupported")
        return cls(directory, name, plan, text.integer("max_position_embeddings", 16, least=3), (side // patch) ** 2)


def square_plan(directory: Path, usual: str) -> ImagePlan:
    """Read OWLv2's preprocessing, which blurs and interpolates; as a filter, 0 would leave out the blur."""
    fields = image_fields(directory, usual, ("do_resize", "do_rescale", "do_pad"))
    if resample(fields) == 0:
        raise LoadError(f"{fields.where}: resample 0 cannot be served; supported are 1 to 5", "unsupported")
    return ImagePlan(Resizing.read(fields, (EXACT,)), resample(fields), None, **scaling(fields))


def _check(tower: Fields) -> None:
    for name, most in (
        ("num_hidden_layers", LIMITS.max_layers),
        ("hidden_size", LIMITS.max_width),
        ("num_attention_heads", LIMITS.max_width),
    ):
        tower.integer(name, 1, least=1, most=most)
