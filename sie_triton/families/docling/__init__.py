"""Documents as text, Markdown and structure, by the library Docling, in a worker environment of its own.

document → Docling → {"text", "markdown", "document"} in `data`

Docling reads the text stored in a PDF, in stored order. Layout models and OCR do not run, so images cannot be read: a
request that sends one, or sets `ocr`, is refused.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Ge

from sie_triton.contract import Extraction, Features, Findings, Parameter, ParameterValue, Part, Ragged, Rows
from sie_triton.contract.tensors import DOCUMENT, IMAGE, READ, Tensor
from sie_triton.errors import InputError
from sie_triton.families.base import Adapter, Family, Options
from sie_triton.inputs.base import Frame, Processor
from sie_triton.inputs.documents import check_document
from sie_triton.spec import ANY_LENGTH, ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines import Engine

CONTENT_LENGTHS = Tensor("content_lengths", "INT32", (-1,), "[n] bytes of each document")
CONTENT = Tensor("content", "UINT8", (-1,), "[bytes] of all documents", CONTENT_LENGTHS.name)
CONVERTED_LENGTHS = Tensor("converted_lengths", "INT32", (-1,), "[n] bytes of each result")
CONVERTED = Tensor("converted", "UINT8", (-1,), "[bytes] JSON of each document's result", CONVERTED_LENGTHS.name)
ERROR = "error"

# Bytes that cost as much as a token, roughly. How long a document takes is not known in advance.
BYTES_A_TOKEN = 256

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


OCR = Parameter("ocr", bool, doc="read text in images; not supported by this version")


class DocumentProcessor(Processor):
    prepares = True

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes

    def frame(self, part: Part) -> Frame:
        if part.options.get(OCR.name, False):
            raise InputError.at(
                f"parameter {OCR.name}",
                "OCR is not supported, only the text stored in a document is read; leave it out",
            )
        return super().frame(part)

    def is_slow(self, element: Any) -> bool:
        return True

    def prepare(self, element: Any) -> Any:
        if IMAGE.name in element:
            raise InputError.at(element[IMAGE.name].where, "is an image, which needs OCR, but OCR is not supported")
        check_document(element[DOCUMENT.name], self._max_bytes)
        return element

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        contents = [np.frombuffer(item[DOCUMENT.name].content, np.uint8) for item in framed]
        lengths = np.array(list(map(len, contents)), np.int32)
        return {
            READ.name: Ragged(1 + lengths // BYTES_A_TOKEN),
            CONTENT.name: Ragged(np.concatenate(contents), lengths),
        }


class Docling(Family):
    inputs = ("image", "document")
    verbs = ("extract",)
    extraction = Extraction((CONVERTED,), converted)
    features = (READ, CONTENT)
    parameters = (OCR,)
    options = DoclingOptions
    engines = ("sie_triton.engines:Engine",)
    environment = "docling"
    reference_adapters = ("docling:DoclingAdapter",)

    def longest(self, directory: Path) -> int:
        return ANY_LENGTH

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        return DocumentProcessor(spec.runtime.max_document_bytes)

    def load(self, spec: ModelSpec, directory: Path, engine: "Engine") -> Adapter:
        from sie_triton.families.docling.adapter import DoclingAdapter

        options: DoclingOptions = self.options_of(spec)
        return DoclingAdapter(options.max_num_pages)
