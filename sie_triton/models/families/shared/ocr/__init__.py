"""Language models that write down the text of an image."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from sie_triton.checkpoints.chat_template import FILE
from sie_triton.checkpoints.page_models import kind_of
from sie_triton.contract import Extraction, Findings, Line, Parameter, ParameterValue, Rows
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, PIXELS, READ, Tensor
from sie_triton.models.families.base import Recognised
from sie_triton.models.families.shared.pages import VisionLanguageFamily
from sie_triton.models.families.shared.readers.processor import (
    BEAMS_PARAMETER,
    CERTAIN,
    GENERATED,
    NEW_TOKENS,
    NEW_TOKENS_PARAMETER,
    text_of,
)

MARKDOWN = "markdown"


def findings(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    """Return the generated text unchanged."""
    (row,) = rows
    label, text = json.loads(text_of(row))
    return Findings(data=text, lines=[Line(text, None, label, CERTAIN)] if text else [])


class OcrFamily(VisionLanguageFamily):
    """Base of families of page readers."""

    usual_longest = 131_072
    inputs = ("image",)
    extraction = Extraction((GENERATED,), findings)
    features: ClassVar[tuple[Tensor, ...]] = (READ, INPUT_IDS, PIXELS, IMAGE_SIZES, NEW_TOKENS)
    parameters: ClassVar[tuple[Parameter, ...]] = (NEW_TOKENS_PARAMETER, BEAMS_PARAMETER)
    generates = True
    files = (FILE,)

    def recognise(self, directory: Path) -> Recognised | None:
        if not self.recognises(directory):
            return None
        files = self.read(directory)
        reason = f"config.json: {kind_of(directory)[0]}, pages and answers of up to {files.longest} tokens"
        return Recognised(reason, files.longest, {}, extracts=True, weights=(directory,))
