"""Language models that write down the text of an image."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from sie_triton.checkpoints.chat_template import FILE
from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.contract import Extraction, Findings, Line, Parameter, ParameterValue, Rows
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, PIXELS, READ, Tensor
from sie_triton.models.families.base import Family, Recognised
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


class OcrFamily(Family):
    """Base of families of page readers. `model_type` is that in config.json."""

    model_type: ClassVar[str]
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

    def recognises(self, directory: Path) -> bool:
        """Return whether config.json is that of the family."""
        return kind_of(directory)[0] == self.model_type

    def read(self, directory: Path) -> PageFiles:
        """Read the files."""
        return PageFiles.read(directory, (self.model_type,), longest=131_072)

    def longest(self, directory: Path) -> int:
        return self.read(directory).longest
