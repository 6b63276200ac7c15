"""Documents through Docling, each in a separate process.

Docling's time and memory grow with what a document contains, not with its size: two cells of a sheet may span 17
billion. So the process is limited in both, and ends with the deadline. It is forked from the worker, whose own threads
run no Docling after the load.
"""

import io
import json
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Lock
from time import monotonic_ns
from typing import Any

import numpy as np

from sie_triton.contract import Batch, Features, Ragged, Rows
from sie_triton.contract.arrays import item_lengths
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import READ
from sie_triton.engines import Engine
from sie_triton.engines.base import Encoder
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.docling import (
    BYTES_A_TOKEN,
    CONTENT,
    CONVERTED,
    DOCUMENT_COST,
    ERROR,
    PACKAGES,
    DoclingOptions,
)
from sie_triton.models.inputs.documents import format_of
from sie_triton.system.processes import confined

SAMPLE, HTML = b"# A heading\n\nA line of text.\n", b"<html><p>A line of text.</p></html>"

FORK = get_context("fork")


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Limits of the conversion of one document."""

    processor_s: int = 10
    bytes_a_second: int = 5000  # of the document, that allow another second
    memory_bytes: int = 2_000_000_000
    result_bytes: int = 64 * 1024**2


class DoclingAdapter(Adapter):
    """Docling. A document may take `most_s` seconds."""

    def __init__(self, max_num_pages: int, most_s: float, limits: DocumentLimits = DocumentLimits()) -> None:
        self._document_limits = limits
        longest = DOCUMENT_COST + 2**31 // BYTES_A_TOKEN
        super().__init__(Encoder(), limits={READ.name: longest, CONTENT.lengths: 2**31 - 1})
        self._max_num_pages, self._most_s, self._starting = max_num_pages, most_s, Lock()
        self._converter = _converter()
        for sample in (SAMPLE, HTML):  # imports what each process would import again
            self._convert(sample)
        self.sample = _sample

    def forward(self, batch: Batch) -> Rows:
        files = batch.features[CONTENT.name].split()
        most_s = self._most_s / len(files)
        found = [self._converted(file.tobytes(), most_s, batch.deadline_ns) for file in files]
        return {
            CONVERTED.name: np.frombuffer(b"".join(found), np.uint8),
            CONVERTED.lengths: item_lengths(found),
        }

    def _converted(self, content: bytes, most_s: float, deadline_ns: int | None) -> bytes:
        """Return the JSON that the process of a document sends: its result, or an error."""
        if deadline_ns is not None:
            most_s = min(most_s, (deadline_ns - monotonic_ns()) / 1e9)
        if most_s <= 0:
            return _error("its deadline has passed")
        with self._starting:  # a process that another lane forks meanwhile would hold `theirs` open
            ours, theirs = FORK.Pipe(duplex=False)
            process = FORK.Process(target=self._run, args=(content, theirs, most_s), daemon=True)
            process.start()
            theirs.close()
        try:
            if ours.poll(most_s):
                return ours.recv_bytes(self._document_limits.result_bytes)
        except (EOFError, OSError):  # it ended, or its result is too large
            pass
        finally:
            ours.close()
            process.kill()
            process.join()
        return _error("it takes too much time or memory; send a smaller or simpler one")

    def _run(self, content: bytes, to: Connection, most_s: float) -> None:
        """Convert a document in the process forked for it."""
        confined.die_with_parent()
        confined.die_first()
        seconds, limits = 1 + int(most_s), self._document_limits
        confined.limit_resources(memory_bytes=limits.memory_bytes, file_bytes=0, seconds=seconds)
        processor_s = min(seconds, limits.processor_s + len(content) // limits.bytes_a_second)
        resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s))
        to.send_bytes(self._convert(content))

    def _convert(self, content: bytes) -> bytes:
        """Return JSON of text, Markdown and structure, or of an error about the document."""
        from docling.datamodel.base_models import DocumentStream

        stream = DocumentStream(name=f"document.{format_of(content)}", stream=io.BytesIO(content))
        try:
            document = self._converter.convert(stream, max_num_pages=self._max_num_pages).document
            found = {
                "text": document.export_to_text(),
                "markdown": document.export_to_markdown(),
                "document": document.export_to_dict(),
            }
            return json.dumps(found).encode()
        except Exception as raised:  # by any of the libraries that read documents
            exc: BaseException = raised
            while exc.__cause__ is not None:
                exc = exc.__cause__
            return _error((str(exc).splitlines() or [type(exc).__name__])[0][:300])


def _error(what: str) -> bytes:
    return json.dumps({ERROR: what}).encode()


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
    """Return one document, since a pass converts only one; the lengths have no effect."""
    return {
        READ.name: Ragged(np.array([sum(lengths)], np.int32)),
        CONTENT.name: Ragged(np.frombuffer(SAMPLE, np.uint8), np.array([len(SAMPLE)], np.int32)),
    }


def load_adapter(spec: ModelSpec, directory: Path, engine: Engine) -> DoclingAdapter:
    # The worker would be ended after the whole timeout.
    return DoclingAdapter(DoclingOptions.of(spec).max_num_pages, spec.runtime.forward_timeout_s / 2)
