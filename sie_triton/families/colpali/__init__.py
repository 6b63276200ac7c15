"""ColPali: a page as an image, one small vector for each of its patches (Faysse et al., 2024).

image → resized → SigLIP → a state for each patch, before the tokens of the prompt → Gemma → projection → unit vectors
text → prefix, text, padding tokens → Gemma → projection → unit vectors
"""

from pathlib import Path
from typing import TYPE_CHECKING

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.checkpoints.page_models import PageFiles, kind_of, special_token
from sie_triton.contract.tensors import INPUT_IDS, PIXELS, READ
from sie_triton.errors import LoadError
from sie_triton.families.base import Adapter, Recognised
from sie_triton.families.shared.pages.family import PageFamily
from sie_triton.inputs import Processor
from sie_triton.spec import ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines.torch.engine import TorchEngine

LONGEST = 8192

# Image preprocessing of PaliGemma's training.
USUAL_IMAGES = {"size": {"height": 448, "width": 448}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


class ColPali(PageFamily):
    features = (READ, INPUT_IDS, PIXELS)
    takes_loras = True
    reference_adapters = ("colpali:ColPaliAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if kind_of(directory)[0] != "colpali":
            return None
        files = self.read(directory)
        plan, num_patches = images_of(files)
        reason = f"config.json: colpali, images of {plan.shape[0]} × {plan.shape[1]} in {num_patches} patches"
        return Recognised(reason, files.longest, {"multivector": files.dim}, scores=True, weights=(directory,))

    def read(self, directory: Path) -> PageFiles:
        return PageFiles.read(directory, ("paligemma",), LONGEST)

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        from sie_triton.families.shared.pages.processor import (
            AUGMENTATION,
            PageForm,
            PageImages,
            PageProcessor,
            tokens_of,
            whole_tokenizer,
        )
        from sie_triton.inputs.pixels import resized

        files = self.read(directory)
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

    def load(self, spec: ModelSpec, directory: Path, engine: "TorchEngine") -> Adapter:
        from sie_triton.families.colpali.adapter import load

        files = self.read(directory)
        plan, _ = images_of(files)
        return load(files, plan, self.page(spec, directory, plan.shape), engine)


def images_of(files: PageFiles) -> tuple[ImagePlan, int]:
    """Return the preprocessing and the patches of an image; raise LoadError if the model needs another size."""
    plan = ImagePlan.read(files.directory, USUAL_IMAGES)
    side, patch = files.vision.integer("image_size", 224, least=1), files.vision.integer("patch_size", 14, least=1)
    if plan.shape != (side, side):
        message = (
            f"{files.directory}: images are resized to {plan.shape[0]} × {plan.shape[1]}, but config.json needs "
            f"{side} × {side}"
        )
        raise LoadError(message, "unsupported")
    return plan, (side // patch) ** 2
