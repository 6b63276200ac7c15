"""Instruction, image and text → the conversation that the model reads, as tokens, and pixels. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.contract import Features, Part, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import IMAGE, READ, TEXT, TRUNCATED
from sie_triton.models.families.qwen3_vl_embedding import plan_of, read
from sie_triton.models.families.shared.pages.chat_reader import (
    AFTER,
    BEFORE,
    PICTURE,
    ChatReader,
    as_sentence,
    check_text,
)
from sie_triton.models.inputs.base import Frame, Processor
from sie_triton.models.inputs.patch_resizing import patched_size
from sie_triton.models.inputs.pixels import packed_pixels
from sie_triton.models.inputs.tokenizer import packed_ids

INSTRUCTION = "Represent the user's input."


@dataclass(frozen=True, slots=True)
class Told:
    """The instruction for an item."""

    instruction: str

    @property
    def size(self) -> int:
        return len(self.instruction)

    def around(self, element: Any) -> Any:
        return self.instruction, element


class ChatProcessor(Processor):
    """Processor that writes conversations; an item's image goes before its text."""

    prepares = True

    def __init__(self, reader: ChatReader) -> None:
        self._reader = reader

    def frame(self, part: Part) -> Frame:
        """Return the request's instruction, or else that of the profile; a blank one counts as none."""
        super().frame(replace(part, instruction=None))
        given = part.profile.query_instruction if part.instruction is None else part.instruction
        check_text(given, "parameter instruction")
        return Told(as_sentence(given) or INSTRUCTION)

    def is_slow(self, element: Any) -> bool:
        return IMAGE.name in element

    def prepare(self, element: Any) -> Any:
        return self._reader.prepared(element)

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        images = [item.get(IMAGE.name) for _, item in framed]
        each = [[] if image is None else [image] for image in images]
        conversations = [
            f"{BEFORE.format(told)}{PICTURE * len(of)}{self._reader.beginning(item.get(TEXT.name, ''))}{AFTER}"
            for (told, item), of in zip(framed, each, strict=True)
        ]
        ids, cut = self._reader.tokens(conversations, each)
        read = Ragged(self._reader.read(ids, each))
        return {READ.name: read, TRUNCATED.name: Ragged(np.array(cut)), **packed_ids(ids), **packed_pixels(images)}

    def page(self, height: int, width: int) -> Features:
        """Return the features of one white page of this size, with the default instruction."""
        white = np.full((*patched_size(height, width, self._reader.plan), 3), 255, np.uint8)
        return self.encode([(INSTRUCTION, {IMAGE.name: white})])


def load_processor(spec: ModelSpec, directory: Path) -> ChatProcessor:
    files = read(directory)
    longest = min(spec.max_sequence_length, files.longest)
    return ChatProcessor(ChatReader(files, plan_of(files), longest, spec.runtime))
