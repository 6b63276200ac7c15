"""ColQwen2's pages and texts → tokens and patches. No torch."""

from pathlib import Path

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import LoadError
from sie_triton.models.families.colqwen2 import IMAGE_PROMPT, ColQwen2, is_of_engine
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
    files = ColQwen2.read(directory)
    plan, pad = PatchPlan.read(directory, files.vision), special_token(directory, "pad_token")
    prompt = files.settings.text("visual_prompt_prefix", IMAGE_PROMPT)
    after_text = pad * AUGMENTATION + ("" if is_of_engine(files) else "\n")
    return page_processor(spec, files, plan, prompt, (files.settings.text("query_prefix", "Query: "), after_text))


def page_processor(
    spec: ModelSpec,
    files: PageFiles,
    plan: PatchPlan,
    image_prompt: str,
    around_text: tuple[str, str],
    kind: type[PageProcessor] = PageProcessor,
) -> PageProcessor:
    """Make a processor of this kind; raise LoadError unless `image_prompt` has the token of an image exactly once."""
    tokenizer = whole_tokenizer(files.directory)
    prompt = tokens_of(tokenizer, image_prompt)
    if prompt.count(files.image_token) != 1:
        message = (
            f"{files.directory}: the prompt of images must contain the token {files.image_token}, which stands for "
            "them, exactly once"
        )
        raise LoadError(message, "unsupported")
    place = prompt.index(files.image_token)
    form = PageForm(
        before_text=around_text[0],
        after_text=around_text[1],
        before_image=prompt[:place],
        after_image=prompt[place + 1 :],
        image_token=files.image_token,
    )
    images = PageImages(
        lambda picture: resized_for_patches(picture, plan),
        lambda height, width: (plan.num_patches(height, width), plan.num_tokens(height, width)),
    )
    return kind(tokenizer, form, images, min(spec.max_sequence_length, files.longest), spec.runtime)
