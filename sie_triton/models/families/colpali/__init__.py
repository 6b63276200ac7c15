"""ColPali: a page as an image, one small vector for each of its patches (Faysse et al., 2024).

image → resized → SigLIP → a state for each patch, before the tokens of the prompt → Gemma → projection → unit vectors
text → prefix, text, padding tokens → Gemma → projection → unit vectors
"""

from pathlib import Path

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.checkpoints.towers import check_shape
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, PIXELS, READ
from sie_triton.models.families.shared.pages import PageFamily
from sie_triton.models.families.shared.pages.processor import (
    AUGMENTATION,
    PageForm,
    PageImages,
    PageProcessor,
    tokens_of,
    whole_tokenizer,
)
from sie_triton.models.inputs.pixels import resized


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


def load_processor(spec: ModelSpec, directory: Path) -> PageProcessor:
    files = ColPali.read(directory)
    plan, num_patches = images_of(files)
    tokenizer = whole_tokenizer(directory)
    bos, pad = (special_token(directory, name) for name in ("bos_token", "pad_token"))
    prompt = files.settings.text("visual_prompt_prefix", "Describe the image.")
    form = PageForm(
        before_text=f"{bos}{files.settings.text('query_prefix', 'Question: ')}",
        after_text=f"{pad * AUGMENTATION}\n",
        before_image=(),
        after_image=tokens_of(tokenizer, f"{bos}{prompt}\n"),
        image_token=files.image_token,
    )
    images = PageImages(lambda picture: resized(picture, plan), lambda height, width: (num_patches, num_patches))
    return PageProcessor(tokenizer, form, images, min(spec.max_sequence_length, files.longest), spec.runtime)
