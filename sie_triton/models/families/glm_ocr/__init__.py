"""GLM-OCR: text, tables and formulas of a page as markdown, or the answer to an instruction.

page → at about its own size → patches → CogViT → a state for four patches, within the prompt → GLM → markdown
"""

from dataclasses import dataclass

from sie_triton.models.families.shared.ocr import OcrFamily
from sie_triton.models.families.shared.readers.processor import READER_PARAMETERS, TaskOptions

USUAL_NEW_TOKENS = 8192

OCR = "ocr"
TASKS = {OCR: "Text Recognition:", "table": "Table Recognition:", "formula": "Formula Recognition:"}


@dataclass(frozen=True)
class GlmOcrOptions(TaskOptions):
    """Options of GLM-OCR. `user_text` replaces the prompt of the default task."""

    user_text: str = ""


class GlmOcr(OcrFamily):
    model_types = ("glm_ocr",)
    parameters = READER_PARAMETERS
    options = GlmOcrOptions
    reference_adapters = ("glm_ocr:GlmOcrAdapter",)
