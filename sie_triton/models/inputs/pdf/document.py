"""A PDF, opened by a confined process that draws its pages."""

import os
import select
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic

from sie_triton.errors import Cancelled, InputError
from sie_triton.models.inputs.limits import LIMITS, InputLimits
from sie_triton.models.inputs.pdf.draw import ENCRYPTED, HEAD, NUMBER, UNCONFINED
from sie_triton.system.processes.confined import start


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn page: red, green and blue, `stride` bytes per row."""

    pixels: bytes
    width: int
    height: int
    stride: int


def is_pdf(content: bytes) -> bool:
    """True if the content begins like a PDF: with its header, which a mark of UTF-8 and spaces may precede."""
    return content[:1024].lstrip(b"\xef\xbb\xbf \t\r\n\0").startswith(b"%PDF-")


class PdfDocument:
    """An open PDF, for one thread. Every InputError begins with `where`. Raise Cancelled once `is_over()`."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        where: str,
        is_over: Callable[[], bool],
        limits: InputLimits = LIMITS,
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout
        self._where, self._is_over, self._limits = where, is_over, limits
        (self.num_pages,) = NUMBER.unpack(self._read(NUMBER.size, monotonic() + self._limits.pdf_step_s))

    def draw(self, number: int) -> Drawing:
        """Draw page `number`, from 1."""
        ends = monotonic() + self._limits.pdf_step_s
        with suppress(BrokenPipeError):
            self._to.write(NUMBER.pack(number - 1))
        width, height, stride = HEAD.unpack(self._read(HEAD.size, ends))
        most = 2 * 3 * self._limits.max_page_pixels  # its sides are rounded up, and its rows padded
        if not 0 < 3 * width <= stride or not 0 < stride * height <= most:
            raise InputError.at(self._where, f"page {number} cannot be drawn; leave it out with the parameter pages")
        return Drawing(self._read(stride * height, ends), width, height, stride)

    def _read(self, size: int, ends: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += self._part(min(size - len(data), 1 << 20), ends)
        return bytes(data)

    def _part(self, size: int, ends: float) -> bytes:
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        while not poll.poll(1000 * max(0.0, min(self._limits.pdf_poll_s, ends - monotonic()))):
            if self._is_over():
                raise Cancelled("cancelled by the client, or its deadline passed")
            if monotonic() >= ends:
                raise InputError.at(
                    self._where, f"is a PDF that takes longer than {self._limits.pdf_step_s:g} s per page to draw"
                )
        part = os.read(self._from.fileno(), size)
        if not part:
            raise InputError.at(self._where, "is a PDF that cannot be drawn within the limits of memory and time")
        return part


@contextmanager
def opened(
    content: bytes, where: str, is_over: Callable[[], bool] = lambda: False, limits: InputLimits = LIMITS
) -> Iterator[PdfDocument]:
    """Open a PDF; InputError begins with `where` and gives the reason; Cancelled once `is_over()`."""
    with _in_memory(content) as file:
        process = start("sie_triton.models.inputs.pdf.draw", file, limits.pdf_s, descriptors=[file], bufsize=0)
    with process:
        try:
            document = PdfDocument(process, where, is_over, limits)
            _check(document.num_pages, where)
            yield document
        finally:
            process.kill()


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """Yield the descriptor of an anonymous file with this content."""
    with open(os.memfd_create("pdf"), "w+b") as file:
        file.write(content)
        file.seek(0)
        yield file.fileno()


def _check(num_pages: int, where: str) -> None:
    if num_pages > 0:
        return
    why = {
        0: "has no pages",
        ENCRYPTED: "is encrypted; send it without a password",
        UNCONFINED: "cannot be read: this system cannot confine the process that draws; send images of its pages",
    }
    raise InputError.at(where, f"is a PDF that {why.get(num_pages, 'is damaged; send a whole file')}")
