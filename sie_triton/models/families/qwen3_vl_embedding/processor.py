"""Instruction, image and text → the conversation that the model reads, as tokens, and pixels. No torch."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sie_triton.contract import Features, Part
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import IMAGE, TEXT
from sie_triton.models.families.qwen3_vl_embedding import Qwen3VLEmbedding, plan_of
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
from sie_triton.models.inputs.words import PromptedTexts

INSTRUCTION = "Represent the user's input."


class ChatProcessor(ConversationProcessor):
    """Processor that writes conversations; an item's image goes before its text."""

    def frame(self, part: Part) -> Frame:
        """Return the request's instruction, or else that of the profile; a blank one counts as none."""
        super().frame(replace(part, instruction=None))
        given = part.profile.query_instruction if part.instruction is None else part.instruction
        check_text(given, "parameter instruction")
        told = as_sentence(given) or INSTRUCTION
        return PromptedTexts(lambda: told, len(told))

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
