"""Qwen3-VL-Embedding: texts, images, or both together in a common embedding space, by an instruction.

instruction, image, text → a conversation → tokens, and patches → Qwen3-VL → state of the last token → dense

Images are limited to the size in the authors' own code, which is less than preprocessor_config.json allows.
"""

from dataclasses import replace
from pathlib import Path

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.models.families.base import Recognised
from sie_triton.models.families.shared.pages import VisionLanguageFamily

QWEN3_VL = "qwen3_vl"


class Qwen3VLEmbedding(VisionLanguageFamily):
    model_types = (QWEN3_VL,)
    usual_longest = 128_000
    unread_inputs = ("video",)
    outputs = (ENCODE_OUTPUTS["dense"],)
    takes_loras = True
    reference_adapters = ("qwen3_vl_embedding:Qwen3VLEmbeddingAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if not self.recognises(directory):
            return None
        files = self.read(directory)
        doubt = (
            f"{files.vlm.where}: {QWEN3_VL} may embed (qwen3_vl_embedding), rerank (qwen3_vl_reranker) or generate text"
        )
        return Recognised(
            f"config.json: {QWEN3_VL}",
            files.longest,
            {"dense": files.text.integer("hidden_size", least=1)},
            normalize=True,
            weights=(directory,),
            doubt=f"{doubt}; decide in a model file, with profiles.default.adapter_path",
        )


def plan_of(files: PageFiles) -> PatchPlan:
    """Return the plan of images of 4 to 1800 tokens."""
    plan = PatchPlan.read(files.directory, files.vision)
    return replace(plan, min_pixels=4 * plan.factor**2, max_pixels=1800 * plan.factor**2)
