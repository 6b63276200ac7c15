"""ColQwen3: ColQwen2 over Qwen3-VL, as TomoroAI trained and saves it.

image → resized → patches → vision transformer → a state for four patches, within the prompt → Qwen3-VL → projection
text → prefix, text, padding tokens → Qwen3-VL → projection → unit vectors

Forms of texts and images, and the limit of an image's tokens, are those of the authors' own processor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le

from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.colqwen2 import page_processor
from sie_triton.models.families.shared.pages import PageFamily, PageOptions
from sie_triton.models.families.shared.pages.processor import AUGMENTATION, PageProcessor


@dataclass(frozen=True)
class ColQwen3Options(PageOptions):
    """Options of ColQwen3. `max_num_visual_tokens` of an image, whatever preprocessor_config.json says."""

    max_num_visual_tokens: Annotated[int, Ge(1), Le(16_384)] = 1280


class ColQwen3(PageFamily):
    options = ColQwen3Options
    model_types = ("colqwen3",)
    usual_longest = 262_144
    reference_adapters = ("colqwen3:ColQwen3Adapter",)

    @classmethod
    def read(cls, directory: Path) -> PageFiles:
        files = super().read(directory)
        return replace(files, dim=files.vlm.integer("embed_dim", 320, least=1, most=LIMITS.max_width))

    def described(self, files: PageFiles) -> str:
        return f"colqwen3, images of at most {plan_of(files, ColQwen3Options()).max_tokens} tokens"


def plan_of(files: PageFiles, options: ColQwen3Options) -> PatchPlan:
    plan = PatchPlan.read(files.directory, files.vision)
    return replace(plan, max_pixels=options.max_num_visual_tokens * plan.factor**2)


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
