"""ColQwen2's pages and texts → tokens and patches. No torch."""

from pathlib import Path

from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import LoadError
from sie_triton.models.families.colqwen2 import IMAGE_PROMPT, is_of_engine, read
from sie_triton.models.families.shared.pages.processor import (
    AUGMENTATION,
    PageForm,
    PageImages,
    PageProcessor,
    tokens_of,
    whole_tokenizer,
)
from sie_triton.models.inputs.patch_resizing import resized_for_patches


def load_processor(spec: ModelSpec, directory: Path) -> PageProcessor:
    files = read(directory)
    plan = PatchPlan.read(directory, files.vision)
    tokenizer, pad = whole_tokenizer(directory), special_token(directory, "pad_token")
    prompt = tokens_of(tokenizer, files.settings.text("visual_prompt_prefix", IMAGE_PROMPT))
    if prompt.count(files.image_token) != 1:
        message = (
            f"{directory}: the prompt of images must contain the token {files.image_token}, which stands for "
            "them, exactly once"
        )
        raise LoadError(message, "unsupported")
    place = prompt.index(files.image_token)
    form = PageForm(
        before_text=files.settings.text("query_prefix", "Query: "),
        after_text=pad * AUGMENTATION + ("" if is_of_engine(files) else "\n"),
        before_image=prompt[:place],
        after_image=prompt[place + 1 :],
        image_token=files.image_token,
    )
    images = PageImages(
        lambda picture: resized_for_patches(picture, plan),
        lambda height, width: (plan.num_patches(height, width), plan.num_tokens(height, width)),
    )
    return PageProcessor(tokenizer, form, images, min(spec.max_sequence_length, files.longest), spec.runtime)
