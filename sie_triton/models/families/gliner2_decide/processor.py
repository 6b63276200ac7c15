"""Questions and the words of a text → rows of packed token ids. No torch."""

from pathlib import Path

from sie_triton.contract import Label, Part
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.gliner2 import Gliner2Tokenizer, opened
from sie_triton.models.families.gliner2.request import ExtractionRequest
from sie_triton.models.families.gliner2_decide import questions_of


class DecideTokenizer(Gliner2Tokenizer):
    def _asked(self, part: Part) -> tuple[ExtractionRequest, tuple[Label, ...]]:
        return ExtractionRequest(tasks=questions_of(part.labels, part.options)), ()


def load_processor(spec: ModelSpec, directory: Path) -> DecideTokenizer:
    return opened(DecideTokenizer, spec, directory)
