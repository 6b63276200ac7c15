"""Each document is converted by a process of its own, with limits; a double of Docling does what hostile ones ask.

tests/server/test_docling.py sends such documents to Docling itself.
"""

import json
import multiprocessing
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from time import monotonic_ns
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from sie_triton.contract import Batch, Ragged
from sie_triton.models.families.docling import CONTENT, CONVERTED, adapter
from sie_triton.models.families.docling.adapter import DoclingAdapter, DocumentLimits

TOO_MUCH = {"error": "it takes too much time or memory; send a smaller or simpler one"}
LIMITS = DocumentLimits()


class Document(SimpleNamespace):
    def export_to_text(self):
        if self.content == b"a deep list":
            raise RecursionError("too deep")
        return "x" * self.size

    def export_to_markdown(self):
        return "x"

    def export_to_dict(self):
        return {}


class Converter:
    def __init__(self, format_options):
        self.pid = os.getpid()

    def convert(self, stream, max_num_pages):
        content, size = stream.stream.read(), 1
        assert os.getpid() != self.pid or content in (adapter.SAMPLE, adapter.HTML), "the worker converts nothing"
        if content == b"two cells":
            while True:
                pass
        if content == b"a parser's fault":
            os.kill(os.getpid(), signal.SIGKILL)
        if content == b"entities":
            bytearray(2 * LIMITS.memory_bytes)
        if content == b"no document":
            raise ValueError("conversion failed") from OSError("not readable")
        if content == b"very long":
            size = LIMITS.result_bytes
        return SimpleNamespace(document=Document(content=content, size=size))


@pytest.fixture
def docling(monkeypatch):
    """A worker's adapter with the double in place of the library."""
    kinds, converters = ModuleType("docling.datamodel.base_models"), ModuleType("docling.document_converter")
    kinds.InputFormat = SimpleNamespace(PDF="pdf")
    kinds.DocumentStream = SimpleNamespace
    converters.DocumentConverter, converters.NativePdfFormatOption = Converter, SimpleNamespace
    for module in (ModuleType("docling"), ModuleType("docling.datamodel"), kinds, converters):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return DoclingAdapter(10, 60.0)


def converted(docling, *files, deadline_ns=None):
    lengths = np.array(list(map(len, files)), np.int32)
    content = Ragged(np.frombuffer(b"".join(files), np.uint8), lengths)
    rows = docling.forward(Batch({CONTENT.name: content}, np.zeros(len(files), bool), deadline_ns=deadline_ns))
    pieces = np.split(rows[CONVERTED.name], np.cumsum(rows[CONVERTED.lengths])[:-1])
    assert not multiprocessing.active_children(), "each process has ended"
    return [json.loads(piece.tobytes()) for piece in pieces]


@pytest.mark.parametrize(
    ("hostile", "told"),
    [
        (b"a parser's fault", TOO_MUCH),
        (b"very long", TOO_MUCH),
        (b"entities", {"error": "MemoryError"}),
        (b"no document", {"error": "not readable"}),
        (b"a deep list", {"error": "too deep"}),
    ],
)
def test_a_hostile_document_fails_alone(docling, hostile, told):
    before, failed, after = converted(docling, b"# a", hostile, b"# b")
    assert failed == told
    assert before == after == {"text": "x", "markdown": "x", "document": {}}


def test_a_large_document_is_converted(docling):
    assert converted(docling, bytes(10_000_000), bytes(300)) == 2 * [{"text": "x", "markdown": "x", "document": {}}]


def test_a_document_ends_with_its_deadline(docling):
    assert converted(docling, b"two cells", deadline_ns=monotonic_ns() + 10**8) == [TOO_MUCH]
    assert converted(docling, b"# a", deadline_ns=monotonic_ns() - 1) == [{"error": "its deadline has passed"}]


def test_a_document_ends_after_its_processor_time(docling):
    docling._document_limits = DocumentLimits(processor_s=1)
    assert converted(docling, b"two cells") == [TOO_MUCH]


def test_a_document_ends_before_the_worker_would_be_ended(docling):
    docling._most_s = 0.2
    assert converted(docling, b"two cells") == [TOO_MUCH]


def test_a_typical_batch_is_one_document(docling):
    assert [ragged.of_items.tolist() for ragged in docling.sample([1] * 9).values()] == [[9], [len(adapter.SAMPLE)]]


def test_no_process_inherits_the_pipe_of_another_lane(docling, monkeypatch):
    """It would keep the pipe open after the death of the first."""
    together, begun = [], Barrier(2)

    def pipe(duplex):
        with suppress(BrokenBarrierError):
            begun.wait(0.5)
            together.append(1)
        return adapter.get_context("fork").Pipe(duplex)

    monkeypatch.setattr(adapter, "FORK", SimpleNamespace(Pipe=pipe, Process=adapter.FORK.Process))
    with ThreadPoolExecutor(2) as lanes:
        found = list(lanes.map(lambda content: docling._converted(content, 60.0, None), [b"# a", b"# b"]))
    assert [json.loads(each)["text"] for each in found] == ["x", "x"]
    assert not together
