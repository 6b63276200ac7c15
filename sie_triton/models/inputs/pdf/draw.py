"""The process that draws the pages of one PDF: `python -m sie_triton.models.inputs.pdf.draw DESCRIPTOR SECONDS`.

    standard input: i32 page number from 0, repeated
    standard output: i32 number of pages, or one of the codes below; then for each page HEAD and its pixels

The process reads the file only after it is confined, and ends with its input. So a hostile file can waste no more than
the memory and time that this process is allowed.
"""

import os
import sys
from struct import Struct
from typing import TYPE_CHECKING

from sie_triton.models.inputs.limits import LIMITS
from sie_triton.system.processes import confined

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

NUMBER = Struct("<i")
# Width, height, bytes per row of red, green and blue; all 0 if the page cannot be drawn.
HEAD = Struct("<iii")

UNREADABLE, ENCRYPTED, UNCONFINED = -1, -2, -3


def main(file: int, seconds: int) -> None:
    """Draw the pages of `file`, a descriptor at the beginning of the file."""
    import pypdfium2

    size = os.fstat(file).st_size
    confined.die_first()
    try:
        confined.confine(memory_bytes=LIMITS.pdf_memory_bytes + 2 * size, file_bytes=0, seconds=seconds)
    except OSError:
        _write(NUMBER.pack(UNCONFINED))
        os._exit(0)
    try:
        document = pypdfium2.PdfDocument(_read(file, size))
    except pypdfium2.PdfiumError as exc:
        _write(NUMBER.pack(ENCRYPTED if "password" in str(exc).lower() else UNREADABLE))
        os._exit(0)
    _write(NUMBER.pack(len(document)))
    while page := _read(0, NUMBER.size):
        _draw(document, *NUMBER.unpack(page))
    # A regular end of the interpreter would need system calls that are not allowed.
    os._exit(0)


def _draw(document: "PdfDocument", number: int) -> None:
    from pypdfium2 import PdfiumError

    try:
        page = document[number]
        width, height = page.get_size()
        if not (0 < width <= LIMITS.max_page_points and 0 < height <= LIMITS.max_page_points):
            raise ValueError("a page without a size")
        # 150 dots per inch, as of a scan; less for large pages.
        scale = min(150 / 72, (LIMITS.max_page_pixels / (width * height)) ** 0.5)
        bitmap = page.render(scale=scale, rev_byteorder=True)
    except (PdfiumError, ValueError):
        _write(HEAD.pack(0, 0, 0))
        return
    _write(HEAD.pack(bitmap.width, bitmap.height, bitmap.stride))
    _write(memoryview(bitmap.buffer).cast("B"))


def _read(file: int, size: int) -> bytes:
    """Read `size` bytes, fewer at the end of the file."""
    data = bytearray()
    while len(data) < size and (part := os.read(file, min(size - len(data), 1 << 20))):
        data += part
    return bytes(data)


def _write(data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
