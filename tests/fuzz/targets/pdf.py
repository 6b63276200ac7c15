"""PDF files of clients: drawn by a confined process, whose answers are no more trusted than the files."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pypdfium2  # noqa: F401, imported before the first fork
from hypothesis import strategies as st

from sie_triton.errors import InputError
from sie_triton.models.inputs.limits import InputLimits
from sie_triton.models.inputs.pdf import document, draw
from tests.fuzz.damage import HOSTILE, damaged, one
from tests.fuzz.forks import forking
from tests.fuzz.target import Target
from tests.fuzz.targets.stages import check_error
from tests.support import pdfs
from tests.support.pictures import picture, saved

# Pages of a file that are drawn.
MAX_PAGES = 3

# Files that take all the time and memory that there is: tests/process/models/inputs/pdf draws them.
COSTLY = ("bomb", "draws itself", "million", "deep", "zeros")

MAX_BYTES = 60_000

IMAGE = b"/Type/XObject/Subtype/Image/Width 40/Height 30/ColorSpace/DeviceRGB/BitsPerComponent 8"
JPEG = pdfs.stream(saved(picture(40, 30), "JPEG"), IMAGE + b"/Filter/DCTDecode")
PLACED = b"q 90 0 0 90 5 5 cm /X Do Q"
FONT = b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"
PAINTED = (
    b"1 0 0 rg 5 5 50 50 re f 0 0 m 50 99 99 50 9 9 c S BT /F 12 Tf (x) Tj ET BI /W 2 /H 2 /BPC 8 /CS /G ID abcd EI"
)
FILTERS = b"/Filter[/ASCIIHexDecode/ASCII85Decode/LZWDecode/RunLengthDecode/FlateDecode/CCITTFaxDecode/JBIG2Decode]"


@contextmanager
def pdf(directory: Path) -> Iterator[Target]:
    files = [
        pdfs.pdf_of(pdfs.pages(((20, 30), (30, 20)))),
        pdfs.written(PLACED, objects=[JPEG]),
        pdfs.words(FONT),
        pdfs.written(PAINTED),
        pdfs.written(PLACED, objects=[pdfs.stream(b"3c7e61>", IMAGE + FILTERS)]),
    ]
    broken = {name: file for name, (file, _) in pdfs.unreadable().items() if not any(each in name for each in COSTLY)}
    files = 4 * files + [file for file in broken.values() if len(file) < MAX_BYTES]
    with forking("sie_triton.models.inputs.pdf.document", run_draw):
        yield Target(damaged(files), drawn, (InputError,))


def run_draw(arguments: list[str]) -> None:
    """Do what `python -m sie_triton.models.inputs.pdf.draw` does with its arguments."""
    draw.main(*map(int, arguments))


def drawn(file: bytes) -> None:
    """Draw the first pages."""
    try:
        with document.opened(file, "image[0]", limits=InputLimits(pdf_step_s=0.5)) as opened:
            assert opened.num_pages > 0
            for number in range(1, min(opened.num_pages, MAX_PAGES) + 1):
                drawing = opened.draw(number)
                assert len(drawing.pixels) == drawing.stride * drawing.height
                assert drawing.stride >= 3 * drawing.width
    except InputError as exc:
        check_error(exc, "image[0]: ")
        raise


@contextmanager
def drawings(directory: Path) -> Iterator[Target]:
    """Yield the target of a confined process that a file has taken over: it answers what it likes."""
    numbers = one(HOSTILE).map(lambda number: (number % (1 << 32)).to_bytes(4, "little"))
    odd = st.lists(st.one_of(numbers, numbers, st.binary(max_size=40)), max_size=8).map(b"".join)
    good = draw.NUMBER.pack(2) + draw.HEAD.pack(2, 3, 6) + bytes(18) + draw.HEAD.pack(3, 2, 12) + bytes(24)
    answers = st.one_of(damaged([good]), damaged([good]), odd)
    yield Target(answers, read_answers, (InputError,))


def read_answers(answers: bytes) -> None:
    """Read these bytes as what the confined process says."""
    theirs, ours = os.pipe()
    with open(theirs, "rb", buffering=0) as said, open(os.devnull, "wb", buffering=0) as null:
        os.write(ours, answers[:MAX_BYTES])  # a pipe takes no more
        os.close(ours)
        process: Any = SimpleNamespace(stdin=null, stdout=said)
        try:
            opened = document.PdfDocument(process, "image[0]", lambda: False, InputLimits(pdf_step_s=0.2))
            for number in (1, 2):
                drawing = opened.draw(number)
                assert 0 < 3 * drawing.width <= drawing.stride
        except InputError as exc:
            check_error(exc)
            raise
