"""ColQwen3's pages and texts → tokens and patches. No torch."""

from collections.abc import Sequence
from pathlib import Path

from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.colqwen2.processor import page_processor
from sie_triton.models.families.colqwen3 import ColQwen3, ColQwen3Options, plan_of
from sie_triton.models.families.shared.pages.processor import AUGMENTATION, PageProcessor


class ColQwen3Processor(PageProcessor):
    """Processor that reads texts without the white space around them."""

    def _text_tokens(self, texts: Sequence[str]) -> list[Sequence[int]]:
        return super()._text_tokens([text.strip() for text in texts])


def load_processor(spec: ModelSpec, directory: Path) -> PageProcessor:
    files = ColQwen3.read(directory)
    settings, pad = files.settings, special_token(directory, "pad_token")
    usual = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image."
    before, behind = settings.text("visual_prompt_prefix", usual), "<|im_end|><|endoftext|>"
    prompt = before + settings.text("visual_prompt_suffix", behind)
    around = (settings.text("query_prefix", ""), pad * AUGMENTATION)
    return page_processor(spec, files, plan_of(files, ColQwen3Options.of(spec)), prompt, around, ColQwen3Processor)
