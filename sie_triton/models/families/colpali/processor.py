"""ColPali's pages and texts → tokens and pixels. No torch."""

from pathlib import Path

from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.colpali import ColPali, images_of
from sie_triton.models.families.shared.pages.processor import (
    AUGMENTATION,
    PageForm,
    PageImages,
    PageProcessor,
    tokens_of,
    whole_tokenizer,
)
from sie_triton.models.inputs.pixels import resized


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
