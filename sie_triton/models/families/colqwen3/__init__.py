"""ColQwen3: ColQwen2 over Qwen3-VL, as TomoroAI trained and saves it.

image → resized → patches → vision transformer → a state for four patches, within the prompt → Qwen3-VL → projection
text → prefix, text, padding tokens → Qwen3-VL → projection → unit vectors

Forms of texts and images, and the limit of an image's tokens, are those of the authors' own processor.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Le

from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, PIXELS, READ
from sie_triton.models.families.base import Recognised
from sie_triton.models.families.shared.pages import PageFamily, PageOptions

MODEL_TYPE = "colqwen3"


@dataclass(frozen=True)
class ColQwen3Options(PageOptions):
    """Options of ColQwen3. `max_num_visual_tokens` of an image, whatever preprocessor_config.json says."""

    max_num_visual_tokens: Annotated[int, Ge(1), Le(16_384)] = 1280


class ColQwen3(PageFamily):
    options = ColQwen3Options
    features = (READ, INPUT_IDS, PIXELS, IMAGE_SIZES)
    reference_adapters = ("colqwen3:ColQwen3Adapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if kind_of(directory)[0] != MODEL_TYPE:
            return None
        files = read(directory)
        return self.recognised(MODEL_TYPE, files, plan_of(files, ColQwen3Options()))

    def longest(self, directory: Path) -> int:
        return read(directory).longest


def read(directory: Path) -> PageFiles:
    files = PageFiles.read(directory, (MODEL_TYPE,), longest=262_144)
    return replace(files, dim=files.vlm.integer("embed_dim", 320, least=1, most=LIMITS.max_width))


def plan_of(files: PageFiles, options: ColQwen3Options) -> PatchPlan:
    plan = PatchPlan.read(files.directory, files.vision)
    return replace(plan, max_pixels=options.max_num_visual_tokens * plan.factor**2)
