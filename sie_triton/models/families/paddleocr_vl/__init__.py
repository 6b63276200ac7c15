"""PaddleOCR-VL: text, tables, formulas, charts and seals of a page, by tasks (Cui et al., 2025).

page → at about its own size → patches → SigLIP → a state for four patches, within the prompt → ERNIE → markdown
"""

from sie_triton.contract.tensors import Tensor
from sie_triton.models.families.shared.ocr import OcrFamily
from sie_triton.models.families.shared.readers.processor import READER_PARAMETERS, TaskOptions

USUAL_NEW_TOKENS = 4096

OCR = "ocr"
TASKS = {
    OCR: "OCR:",
    "table": "Table Recognition:",
    "formula": "Formula Recognition:",
    "chart": "Chart Recognition:",
    "spotting": "Spotting:",
    "seal": "Seal Recognition:",
}
NAMES = tuple(TASKS)

# Tasks whose answers contain places and are not markdown.
WITH_PLACES = ("spotting", "seal")

TASK = Tensor("task_number", "INT32", (-1,), "[n] number of the task", "", 0, len(TASKS) - 1)


class PaddleOcrVl(OcrFamily):
    model_types = ("paddleocr_vl",)
    features = (*OcrFamily.features, TASK)
    parameters = READER_PARAMETERS
    options = TaskOptions
    reference_adapters = ("paddleocr_vl:PaddleOCRVLAdapter",)
