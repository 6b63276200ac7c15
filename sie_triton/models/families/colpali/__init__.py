"""ColPali: a page as an image, one small vector for each of its patches (Faysse et al., 2024).

image → resized → SigLIP → a state for each patch, before the tokens of the prompt → Gemma → projection → unit vectors
text → prefix, text, padding tokens → Gemma → projection → unit vectors
"""

from pathlib import Path

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.checkpoints.towers import check_shape
from sie_triton.contract.tensors import INPUT_IDS, PIXELS, READ
from sie_triton.models.families.shared.pages import PageFamily


class ColPali(PageFamily):
    features = (READ, INPUT_IDS, PIXELS)
    model_types = ("paligemma",)
    usual_longest = 8192
    takes_loras = True
    reference_adapters = ("colpali:ColPaliAdapter",)

    def recognises(self, directory: Path) -> bool:
        return kind_of(directory)[0] == "colpali"

    def described(self, files: PageFiles) -> str:
        plan, num_patches = images_of(files)
        return f"colpali, images of {plan.shape[0]} × {plan.shape[1]} in {num_patches} patches"


def images_of(files: PageFiles) -> tuple[ImagePlan, int]:
    """Return the preprocessing and the patches of an image; raise LoadError if the model needs another size."""
    plan = ImagePlan.read(files.directory, "SiglipImageProcessor")
    side, patch = files.vision.integer("image_size", 224, least=1), files.vision.integer("patch_size", 14, least=1)
    check_shape(files.directory, plan, side)
    return plan, (side // patch) ** 2
