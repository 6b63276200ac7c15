"""Qwen3-VL-Embedding: texts, images, or both together in a common embedding space, by an instruction.

instruction, image, text → a conversation → tokens, and patches → Qwen3-VL → state of the last token → dense

Images are limited to the size in the authors' own code, which is less than preprocessor_config.json allows.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract import ENCODE_OUTPUTS, Features, Part
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import IMAGE, TEXT
from sie_triton.models.families.base import Recognised
from sie_triton.models.families.shared.pages import VisionLanguageFamily
from sie_triton.models.families.shared.pages.chat_reader import (
    AFTER,
    BEFORE,
    PICTURE,
    ChatReader,
    ConversationProcessor,
    as_sentence,
    check_text,
)
from sie_triton.models.families.shared.text_or_image import packed
from sie_triton.models.inputs.base import Frame
from sie_triton.models.inputs.prompt import Prompted

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


INSTRUCTION = "Represent the user's input."


class ChatProcessor(ConversationProcessor):
    """Processor that writes conversations; an item's image goes before its text."""

    def frame(self, part: Part) -> Frame:
        """Return the request's instruction, or else that of the profile; a blank one counts as none."""
        super().frame(replace(part, instruction=None))
        given = part.profile.query_instruction if part.instruction is None else part.instruction
        check_text(given, "parameter instruction")
        told = as_sentence(given) or INSTRUCTION
        return Prompted(lambda: told, len(told))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        images = [item.get(IMAGE.name) for _, item in framed]
        each = [[] if image is None else [image] for image in images]
        conversations = [
            f"{BEFORE.format(told)}{PICTURE * len(of)}{self._reader.beginning(item.get(TEXT.name, ''))}{AFTER}"
            for (told, item), of in zip(framed, each, strict=True)
        ]
        ids, cut = self._reader.tokens(conversations, each)
        return packed(self._reader.read(ids, each), cut, ids, images)

    def page(self) -> Features:
        return self.encode([(INSTRUCTION, self.white_page)])


def load_processor(spec: ModelSpec, directory: Path) -> ChatProcessor:
    files = Qwen3VLEmbedding.read(directory)
    longest = min(spec.max_sequence_length, files.longest)
    return ChatProcessor(ChatReader(files, plan_of(files), longest, spec.runtime))
