"""Documents as text, Markdown and structure, by the library Docling, in a separate worker environment.

document → Docling → {"text", "markdown", "document"} in `data`

Docling reads the text stored in a PDF, in stored order. Layout models and OCR do not run, so images cannot be read: a
request that sends one, or sets `ocr`, is refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge

from sie_triton.contract import Extraction, Features, Findings, Parameter, ParameterValue, Part, Ragged, Rows
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import DOCUMENT, IMAGE, READ, Tensor
from sie_triton.errors import InputError
from sie_triton.models.families.base import Family, Options
from sie_triton.models.inputs.base import Frame, Processor
from sie_triton.models.inputs.documents import check_document

CONTENT = Tensor("content", "UINT8", (-1,), "[bytes] of all documents", "content_lengths", is_large=True)
CONVERTED = Tensor("converted", "UINT8", (-1,), "[bytes] JSON of each document's result", "converted_lengths")
ERROR = "error"

# How long a document takes is not known in advance. Each costs a whole forward pass, so that none waits for another
# within its pass; bytes that cost as much as a token, roughly.
DOCUMENT_COST, BYTES_A_TOKEN = 1 << 14, 256

PARTS = "format-pdf,format-docx,format-html,format-pptx,format-xlsx,format-markdown,convert-core"
PACKAGES = f"'docling-slim[{PARTS}]' torch transformers"


@dataclass(frozen=True)
class DoclingOptions(Options):
    """Options of Docling. A document of more than `max_num_pages` pages is refused."""

    max_num_pages: Annotated[int, Ge(1)] = 200


def converted(rows: Sequence[Rows], options: Mapping[str, ParameterValue]) -> Findings:
    (row,) = rows
    data: Any = json.loads(row[CONVERTED.name].tobytes())
    if ERROR in data:
        raise InputError(f"cannot be converted ({data[ERROR]})")
    return Findings(data=data)


OCR = Parameter("ocr", bool, doc="read text in images; not supported")


class Docling(Family):
    inputs = ("image", "document")
    extraction = Extraction((CONVERTED,), converted)
    features = (READ, CONTENT)
    parameters = (OCR,)
    options = DoclingOptions
    engines: ClassVar = {"sie_triton.engines:Engine": ".adapter"}
    environment = "docling"
    reference_adapters = ("docling:DoclingAdapter",)


class DocumentProcessor(Processor):
    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def frame(self, part: Part) -> Frame:
        if part.options.get(OCR.name, False):
            raise InputError.at(
                f"parameter {OCR.name}",
                "OCR is not supported, only the text stored in a document is read; leave it out",
            )
        return super().frame(part)

    def prepare(self, element: Any) -> Any:
        if IMAGE.name in element:
            raise InputError.at(element[IMAGE.name].where, "is an image, which needs OCR, but OCR is not supported")
        check_document(element[DOCUMENT.name], self._max_bytes)
        return element

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        contents = Ragged.of([np.frombuffer(item[DOCUMENT.name].content, np.uint8) for item in framed])
        return {READ.name: Ragged(DOCUMENT_COST + contents.of_items // BYTES_A_TOKEN), CONTENT.name: contents}


def load_processor(spec: ModelSpec, directory: Path) -> DocumentProcessor:
    return DocumentProcessor(spec.runtime.max_document_bytes)
