"""Files of OWL-ViT and OWLv2 as transformers saves them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import ImagePlan, processor_fields
from sie_triton.checkpoints.modules import MAX_LAYERS, MAX_WIDTH
from sie_triton.errors import LoadError

OF_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}

# Defaults by model type: settings of the image processor, and the side of a patch in pixels.
USUAL: Mapping[str, tuple[Mapping[str, Any], int]] = {
    "owlvit": ({**OF_CLIP, "size": {"height": 768, "width": 768}, "crop_size": {"height": 768, "width": 768}}, 32),
    "owlv2": ({**OF_CLIP, "size": {"height": 960, "width": 960}}, 16),
}


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
        """Read the files; raise LoadError naming the one that cannot be used."""
        config = read_fields(directory / "config.json")
        name = config.one_of("model_type", ("owlv2", "owlvit"))
        usual, usual_patch = USUAL[name]
        text, vision = config.fields("text_config"), config.fields("vision_config")
        for tower in (text, vision):
            _check(tower)
        plan = ImagePlan.read(directory, usual)
        side = vision.integer("image_size", 768, least=1)
        patch = vision.integer("patch_size", usual_patch, least=1, most=side)
        if plan.shape != (side, side):
            made = " × ".join(map(str, plan.shape))
            message = f"{directory}: images are resized to {made}, but config.json needs {side} × {side}"
            raise LoadError(message, "unsupported")
        if name == "owlv2" and not processor_fields(directory).flag("do_pad", True):
            raise LoadError(
                f"{directory}: do_pad false cannot be served: boxes are relative to a square", "unsupported"
            )
        return cls(directory, name, plan, text.integer("max_position_embeddings", 16, least=3), (side // patch) ** 2)


def _check(tower: Fields) -> None:
    for name, most in (
        ("num_hidden_layers", MAX_LAYERS),
        ("hidden_size", MAX_WIDTH),
        ("num_attention_heads", MAX_WIDTH),
    ):
        tower.integer(name, 1, least=1, most=most)
