"""LightOnOCR: a page as markdown, without an instruction (Taghadouini et al., 2026).

page → shrunk → Pixtral's vision transformer → a state for four patches, within the prompt → Qwen3 → markdown
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.families.base import Adapter, Options
from sie_triton.families.lighton_ocr.files import LightOnFiles, is_lighton_ocr
from sie_triton.families.shared.ocr.family import OcrFamily
from sie_triton.spec import ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines.torch.engine import TorchEngine
    from sie_triton.families.lighton_ocr.prompt import LightOnProcessor

SYSTEM = "You are an OCR engine. Return the markdown representation of the document."


@dataclass(frozen=True)
class LightOnOcrOptions(Options):
    """Options of LightOnOCR. `system_prompt` is put before every page; it may be empty."""

    system_prompt: str = SYSTEM


class LightOnOcr(OcrFamily):
    options = LightOnOcrOptions
    reference_adapters = ("lighton_ocr:LightOnOCRAdapter",)

    def recognises(self, directory: Path) -> bool:
        return is_lighton_ocr(directory)

    def read(self, directory: Path) -> PageFiles:
        return LightOnFiles.read(directory).files

    def processor(self, spec: ModelSpec, directory: Path) -> "LightOnProcessor":
        from sie_triton.families.lighton_ocr.prompt import LightOnProcessor

        return LightOnProcessor(LightOnFiles.read(directory), self.options_of(spec).system_prompt, spec)

    def load(self, spec: ModelSpec, directory: Path, engine: "TorchEngine") -> Adapter:
        from sie_triton.families.lighton_ocr.adapter import load

        return load(LightOnFiles.read(directory), self.processor(spec, directory).page(), engine)
