"""A page → LightOnOCR's input: pixels as Pixtral's processor makes them, after a system prompt."""

from collections.abc import Sequence
from pathlib import Path

from sie_triton.contract import Part
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.lighton_ocr import LightOnFiles, LightOnOcrOptions
from sie_triton.models.families.shared.ocr.prompt import OcrProcessor, Sizes
from sie_triton.models.inputs.chat_template import Message

USUAL_NEW_TOKENS = 4096


class LightOnProcessor(OcrProcessor):
    def __init__(self, of: LightOnFiles, system: str, spec: ModelSpec) -> None:
        self._system = system
        super().__init__(of.files, Sizes(of.plan.size, of.counts, of.plan.resample), USUAL_NEW_TOKENS, spec)

    def conversation(self, part: Part) -> tuple[Sequence[Message], int]:
        content = [{"type": "image"}, *([{"type": "text", "text": part.instruction}] if part.instruction else [])]
        before = [{"role": "system", "content": self._system}] if self._system else []
        return [*before, {"role": "user", "content": content}], 0


def load_processor(spec: ModelSpec, directory: Path) -> LightOnProcessor:
    return LightOnProcessor(LightOnFiles.read(directory), LightOnOcrOptions.of(spec).system_prompt, spec)
