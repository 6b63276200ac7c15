"""Qwen3-VL-Embedding: texts, images, or both together in a common embedding space, by an instruction.

instruction, image, text → a conversation → tokens, and patches → Qwen3-VL → state of the last token → dense

Images are limited to the size in the authors' own code, which is less than preprocessor_config.json allows.
"""

from dataclasses import replace
from pathlib import Path

from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract import ENCODE_OUTPUTS
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, PIXELS, READ
from sie_triton.models.families.base import Family, Recognised

MODEL_TYPE = "qwen3_vl"


class Qwen3VLEmbedding(Family):
    inputs = ("text", "image")
    unread_inputs = ("video",)
    outputs = (ENCODE_OUTPUTS["dense"],)
    features = (READ, INPUT_IDS, PIXELS, IMAGE_SIZES)
    takes_loras = True
    reference_adapters = ("qwen3_vl_embedding:Qwen3VLEmbeddingAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if kind_of(directory)[0] != MODEL_TYPE:
            return None
        files = read(directory)
        doubt = (
            f"{files.vlm.where}: {MODEL_TYPE} may embed (qwen3_vl_embedding), rerank (qwen3_vl_reranker) or generate "
            "text"
        )
        return Recognised(
            f"config.json: {MODEL_TYPE}",
            files.longest,
            {"dense": files.text.integer("hidden_size", least=1)},
            normalize=True,
            weights=(directory,),
            doubt=f"{doubt}; decide in a model file, with profiles.default.adapter_path",
        )

    def longest(self, directory: Path) -> int:
        return read(directory).longest


def read(directory: Path) -> PageFiles:
    return PageFiles.read(directory, (MODEL_TYPE,), longest=128_000)


def plan_of(files: PageFiles) -> PatchPlan:
    """Return the plan of images of 4 to 1800 tokens."""
    plan = PatchPlan.read(files.directory, files.vision)
    return replace(plan, min_pixels=4 * plan.factor**2, max_pixels=1800 * plan.factor**2)
