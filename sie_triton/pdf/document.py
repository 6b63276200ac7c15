"""A PDF, held by the process that draws it."""

import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from time import monotonic

from sie_triton.errors import Cancelled, InputError
from sie_triton.pdf.draw import ENCRYPTED, HEAD, MAX_PIXELS, NUMBER, UNCONFINED

# What may stand before the header.
MARK, BEFORE = b"%PDF-", b"\xef\xbb\xbf \t\r\n\0"
LOOKED_AT = 1024

# For opening the file, and for each page; and for all of it.
STEP_S, MOST_S = 10.0, 600

# Polling interval of `is_over()` while a page is drawn, in seconds.
LOOK_S = 0.1

# Of a page; its sides are rounded up, and its rows filled.
MOST_BYTES = 2 * 3 * MAX_PIXELS

# The rest of this process' environment is nobody's business.
KEPT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG")


@dataclass(frozen=True, slots=True)
class Drawing:
    """Red, green and blue, `stride` bytes a row."""

    pixels: bytes
    width: int
    height: int
    stride: int


def is_pdf(content: bytes) -> bool:
    """By its beginning."""
    return content[:LOOKED_AT].lstrip(BEFORE).startswith(MARK)


class PdfDocument:
    """Open PDF, for one thread. Every InputError begins with `where`; Cancelled once `is_over()`."""

    def __init__(self, process: subprocess.Popen[bytes], where: str, is_over: Callable[[], bool]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from = process.stdin, process.stdout
        self._where, self._is_over = where, is_over
        (self.num_pages,) = NUMBER.unpack(self._read(NUMBER.size, monotonic() + STEP_S))

    def draw(self, number: int) -> Drawing:
        """Page `number`, from 1."""
        ends = monotonic() + STEP_S
        with suppress(BrokenPipeError):
            self._to.write(NUMBER.pack(number - 1))
        width, height, stride = HEAD.unpack(self._read(HEAD.size, ends))
        if not 0 < 3 * width <= stride or not 0 < stride * height <= MOST_BYTES:
            raise InputError(f"{self._where}: page {number} cannot be drawn; leave it out by parameter pages")
        return Drawing(self._read(stride * height, ends), width, height, stride)

    def _read(self, size: int, ends: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            data += self._part(min(size - len(data), 1 << 20), ends)
        return bytes(data)

    def _part(self, size: int, ends: float) -> bytes:
        poll = select.poll()
        poll.register(self._from, select.POLLIN)
        while not poll.poll(1000 * max(0.0, min(LOOK_S, ends - monotonic()))):
            if self._is_over():
                raise Cancelled("cancelled by the client, or its deadline passed")
            if monotonic() >= ends:
                raise InputError(f"{self._where}: is a PDF that takes longer than {STEP_S:g} s a page to be drawn")
        part = os.read(self._from.fileno(), size)
        if not part:
            raise InputError(f"{self._where}: is a PDF that cannot be drawn in the memory and time that one may take")
        return part


@contextmanager
def opened(content: bytes, where: str, is_over: Callable[[], bool] = lambda: False) -> Iterator[PdfDocument]:
    """Open a PDF; InputError begins with `where` and gives the reason; Cancelled once `is_over()`."""
    with _in_memory(content) as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "sie_triton.pdf.draw", str(file), str(MOST_S)],
            env={name: os.environ[name] for name in KEPT if name in os.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[file],
            bufsize=0,
        )
    with process:
        try:
            document = PdfDocument(process, where, is_over)
            _check(document.num_pages, where)
            yield document
        finally:
            process.kill()


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """The descriptor of a file of that content, which no directory has."""
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
        UNCONFINED: "is not read, as this system cannot confine the process that would; send images of its pages",
    }
    raise InputError(f"{where}: is a PDF that {why.get(num_pages, 'is damaged; send a whole file')}")
