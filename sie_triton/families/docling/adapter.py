"""Documents through Docling, one after another, because its converter is not thread-safe."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from sie_triton.contract import Batch, Features, Ragged, Rows
from sie_triton.contract.tensors import READ
from sie_triton.engines import Engine
from sie_triton.engines.base import Encoder
from sie_triton.errors import LoadError
from sie_triton.families.base import Adapter
from sie_triton.families.docling import (
    BYTES_A_TOKEN,
    CONTENT,
    CONTENT_LENGTHS,
    CONVERTED,
    ERROR,
    PACKAGES,
    DoclingOptions,
)
from sie_triton.inputs.documents import format_of
from sie_triton.spec import ModelSpec

# Cost of the longest document.
MOST_READ = 2**31 // BYTES_A_TOKEN

SAMPLE = b"# A heading\n\nA line of text.\n"


class DoclingAdapter(Adapter):
    def __init__(self, max_num_pages: int) -> None:
        super().__init__(Encoder(), limits={READ.name: MOST_READ, CONTENT_LENGTHS.name: 2**31 - 1})
        self._max_num_pages = max_num_pages
        self._converter = _converter()
        self._lock = Lock()
        self.sample = _sample

    def forward(self, batch: Batch) -> Rows:
        content, lengths = batch.features[CONTENT.name]
        assert lengths is not None
        files = np.split(content, np.cumsum(lengths)[:-1])
        with self._lock:
            found = [json.dumps(self._convert(file.tobytes())).encode() for file in files]
        return {
            CONVERTED.name: np.frombuffer(b"".join(found), np.uint8),
            CONVERTED.lengths: np.array(list(map(len, found)), np.int32),
        }

    def _convert(self, content: bytes) -> dict[str, Any]:
        """Return text, Markdown and structure, or an error about the document."""
        from docling.datamodel.base_models import DocumentStream

        stream = DocumentStream(name=f"document.{format_of(content)}", stream=io.BytesIO(content))
        try:
            document = self._converter.convert(stream, max_num_pages=self._max_num_pages).document
        except Exception as exc:  # raised by any of the libraries that read documents
            return {ERROR: (str(exc).splitlines() or [type(exc).__name__])[0][:300]}
        return {
            "text": document.export_to_text(),
            "markdown": document.export_to_markdown(),
            "document": document.export_to_dict(),
        }


def _converter() -> Any:
    try:
        from docling.datamodel.base_models import InputFormat
        from docling.document_converter import DocumentConverter, NativePdfFormatOption
    except ImportError as exc:
        raise LoadError(
            f"Docling is not installed ({exc}); run sie-triton env add docling {PACKAGES}, or name another environment "
            "in the model file",
            "dependency",
        ) from exc
    return DocumentConverter(format_options={InputFormat.PDF: NativePdfFormatOption()})


def _sample(lengths: Sequence[int]) -> Features:
    files = [np.frombuffer(SAMPLE, np.uint8)] * len(lengths)
    return {
        READ.name: Ragged(np.array(lengths, np.int32)),
        CONTENT.name: Ragged(np.concatenate(files), np.full(len(files), len(SAMPLE), np.int32)),
    }


def load_adapter(spec: ModelSpec, directory: Path, engine: Engine) -> DoclingAdapter:
    """Load Docling; raise LoadError if it is not installed."""
    return DoclingAdapter(DoclingOptions.of(spec).max_num_pages)
