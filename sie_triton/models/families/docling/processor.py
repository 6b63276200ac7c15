"""Documents → their bytes. No torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.contract import Features, Part, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import DOCUMENT, IMAGE, READ
from sie_triton.errors import InputError
from sie_triton.models.families.docling import BYTES_A_TOKEN, CONTENT, DOCUMENT_COST, OCR
from sie_triton.models.inputs.base import Frame, Processor
from sie_triton.models.inputs.documents import check_document


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
        contents = Ragged.of([np.frombuffer(item[DOCUMENT.name].content, np.uint8) for item in framed])
        return {READ.name: Ragged(DOCUMENT_COST + contents.of_items // BYTES_A_TOKEN), CONTENT.name: contents}


def load_processor(spec: ModelSpec, directory: Path) -> DocumentProcessor:
    return DocumentProcessor(spec.runtime.max_document_bytes)
