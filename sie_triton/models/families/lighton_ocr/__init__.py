"""LightOnOCR: a page as markdown, without an instruction (Taghadouini et al., 2026).

page → shrunk → Pixtral's vision transformer → a state for four patches, within the prompt → Qwen3 → markdown
"""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.models.families.base import Options
from sie_triton.models.families.lighton_ocr.files import LightOnFiles, is_lighton_ocr
from sie_triton.models.families.shared.ocr.family import OcrFamily

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
