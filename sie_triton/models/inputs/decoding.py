"""Decode image files with Pillow: their peak memory, and pixels as transformers' image processors see them.

Every function runs on the thread that decodes the picture.
"""

import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING

from sie_triton.errors import Cancelled, InputError
from sie_triton.models.inputs.limits import LIMITS

if TYPE_CHECKING:
    from PIL.Image import Image

# Allowed formats. Others start programs, or allocate memory that no header bounds.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")

# Peak memory from the file to a rotated RGB picture, in bytes per pixel: upper bounds measured with Pillow 13
# (tests/process/models/inputs/test_image_memory.py). Pillow stores three channels in four bytes. A progressive JPEG
# holds the coefficients of all its channels until its last scan; of a rendered page there are its pixels and a copy.
PEAK_BYTES: Mapping[str, int] = {
    "JPEG": 9,
    "PNG": 9,
    "WEBP": 17,
    "GIF": 9,
    "BMP": 9,
    "TIFF": 10,
    "progressive": 13,
    "page": 8,
}

# Pixels composited on white at once.
BAND = 1 << 18

# Pillow reads containers in Python, part by part. Most parts cost nothing, whatever their size. These cost up to 50 ms
# a megabyte, or 2.5 ms each: segments of a JPEG whose content is decoded in Python, by marker (headers, tables,
# resources; also EXIF), and compressed chunks of a PNG.
DEAR_MARKERS, DEAR_CHUNKS = (*range(0xC0, 0xD0), 0xDB, 0xED), (b"iCCP", b"zTXt", b"iTXt")
# Types of a TIFF's tags that stay bytes; the others become numbers, 200 ms a megabyte.
BYTE_TYPES = (1, 2, 7)
# Sizes of an entry of a TIFF's directory; of two bytes for its type, one is zero.
TIFF_ENTRIES = (12, 20)
# Beginning of a PNG.
PNG = b"\x89P"

# Numbers of TIFF tags.
BITS_PER_SAMPLE, SAMPLES_PER_PIXEL, ROWS_PER_STRIP, TILE_WIDTH, TILE_LENGTH = 258, 277, 278, 322, 323
# Tags of a TIFF that lead to further directories.
DIRECTORIES = (34665, 34853, 40965)

# Function that is true once no client waits for what this thread decodes; reads of at least so many bytes call it.
_IS_OVER: ContextVar[Callable[[], bool]] = ContextVar("_IS_OVER", default=lambda: False)
PIXEL_BYTES = 1 << 12


@contextmanager
def stopping(is_over: Callable[[], bool]) -> Iterator[None]:
    """Have images that this thread decodes in the context raise Cancelled once `is_over()`."""
    token = _IS_OVER.set(is_over)
    try:
        yield
    finally:
        _IS_OVER.reset(token)


def _check_awaited() -> None:
    if _IS_OVER.get()():
        raise Cancelled("the client no longer waits for this image")


class BoundedFile(io.BytesIO):
    """An image file that Pillow may read in a limited number of parts. InputError begins with `where`.

    Whatever the container, Pillow reads at least once for each part of it: markers, chunks, blocks, runs, tags, strips.
    Raise Cancelled if the client no longer waits.
    """

    def __init__(self, content: bytes, where: str) -> None:
        super().__init__(content)
        self._where = where
        self._content, self._start, self._type = content, content[:2], 0
        # Tags of a TIFF may share their data; Pillow reads them three times.
        self._parts, self._dear, self._bytes = (
            LIMITS.max_header_parts,
            LIMITS.max_dear_parts,
            4 * len(content) + LIMITS.max_number_bytes,
        )
        self._number_bytes = LIMITS.max_number_bytes

    def end_header(self, num_parts: int = LIMITS.max_image_parts) -> None:
        """Allow the reads of the pixels."""
        self._parts, self._bytes = num_parts, sys.maxsize
        if self._start != PNG:  # only a PNG has further parts behind the pixels
            self._start = b""

    def read(self, size: int | None = -1, /) -> bytes:
        self._parts -= 1
        self._bytes -= max(0, size or 0)
        self._count(size or 0)
        if min(self._parts, self._dear) < 0:
            raise InputError.at(self._where, "consists of too many parts; save the image again, without metadata")
        if min(self._bytes, self._number_bytes) < 0:
            problem = f"has more than {LIMITS.max_number_bytes} bytes of numbers in its tags"
            raise InputError.at(self._where, f"{problem}; save the image again without them")
        if (size and size >= PIXEL_BYTES) or not self._parts % PIXEL_BYTES:
            _check_awaited()
        return super().read(size)

    def _count(self, size: int) -> None:
        """Count the next `size` bytes if Pillow does more than keep them."""
        if self._start in (b"II", b"MM"):
            if size in TIFF_ENTRIES:
                self._type = max(self._peek(2, 4), default=0)
            elif self._type not in BYTE_TYPES:
                self._number_bytes -= max(0, size)
        elif self._start == b"\xff\xd8" and size > 2:
            marker = int.from_bytes(self._peek(-3, -2))
            self._dear -= marker in DEAR_MARKERS or (marker == 0xE1 and self._peek(0, 4) == b"Exif")
        elif self._start == PNG:
            self._dear -= self._peek(-4, 0) in DEAR_CHUNKS

    def _peek(self, start: int, end: int) -> bytes:
        """Return bytes of the file, counted from the place of the next read."""
        return self._content[max(0, self.tell() + start) : self.tell() + end]


def open_image(content: bytes, where: str, max_pixels: int) -> "Image":
    """Read the header of an image file. Any exception of Pillow's is a fault of the file.

    The WEBP decoder allocates its canvas here, so Pillow itself must know `max_pixels`. It raises
    DecompressionBombError beyond twice that number; the caller checks the exact limit.
    """
    from PIL import Image

    _ignore_warnings()
    Image.MAX_IMAGE_PIXELS = max_pixels
    file = BoundedFile(content, where)
    image = Image.open(file, formats=FORMATS)
    if image.format == "TIFF":  # Pillow would read these directories with the pixels, and decode all of their tags
        exif = image.getexif()
        for tag in DIRECTORIES:
            exif.pop(tag, None)
    file.end_header()
    if image.format == "BMP" and image.tile[0][0] == "bmp_rle":
        if image.width * image.height > LIMITS.max_rle_pixels:
            raise InputError.at(
                where, f"is a run-length encoded BMP of more than {LIMITS.max_rle_pixels} pixels; send a PNG"
            )
        # A run has two bytes. In the worst case each pixel is one, and each end of a line.
        file.end_header(2 * (image.width + 1) * image.height + 2)
    return image


@cache
def _ignore_warnings() -> None:
    """Ignore Pillow's warnings of damaged files: Python prints each of them, and remembers its text for ever."""
    warnings.filterwarnings("ignore", module=r"PIL\.")


def peak_bytes(image: "Image", where: str, max_pixels: int) -> int:
    """Estimate the peak memory of decoding from the header alone, in bytes.

    Raise InputError if a TIFF tile has more than `max_pixels`: the decoder allocates whole tiles, whatever the size of
    the image.
    """
    kind = "JPEG" if image.format in (None, "MPO") else image.format
    per_pixel = PEAK_BYTES["progressive" if image.info.get("progressive") else kind]
    return image.width * image.height * per_pixel + _block_bytes(image, where, max_pixels)


def _block_bytes(image: "Image", where: str, max_pixels: int) -> int:
    """Memory for one TIFF tile or strip in addition to the image: the block, and its compressed form or a copy."""
    tags = getattr(image, "tag_v2", None)
    if image.format != "TIFF" or tags is None:
        return 0
    if TILE_WIDTH in tags or TILE_LENGTH in tags:
        width, height = int(tags[TILE_WIDTH]), int(tags[TILE_LENGTH])
    else:
        width, height = image.width, min(int(tags.get(ROWS_PER_STRIP, image.height)), image.height)
    if not 0 < width * height <= max_pixels:
        raise InputError.at(
            where,
            f"is a TIFF with tiles of {width} × {height} pixels; send tiles of at most {max_pixels}, or raise "
            "max_image_pixels",
        )
    bits: int = max(tags.get(BITS_PER_SAMPLE, (8,))) * int(tags.get(SAMPLES_PER_PIXEL, 1))
    return 2 * width * height * max(4, -(-bits // 8))


def to_rgb(image: "Image", where: str) -> "Image":
    """Decode a picture to RGB, rotated by its EXIF orientation, with transparent parts on white."""
    _check_awaited()
    return _on_white(_upright(image, where))


def _upright(image: "Image", where: str) -> "Image":
    """Rotate a picture by its EXIF orientation, if that is readable."""
    from PIL import ImageOps

    image.load()
    size = max(len(image.info.get(name) or "") for name in ("exif", "Raw profile type exif"))
    if size > LIMITS.max_exif_bytes:
        raise InputError.at(where, f"has {size} bytes of EXIF data; send at most {LIMITS.max_exif_bytes}")
    with suppress(Exception):
        ImageOps.exif_transpose(image, in_place=True)
    return image


def _on_white(image: "Image") -> "Image":
    """Composite on white in bands: three copies of a whole picture would take three times its memory."""
    from PIL import Image

    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image if image.mode == "RGB" else image.convert("RGB")
    picture = Image.new("RGB", image.size)
    rows = max(1, BAND // image.width)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(image.height, top + rows))
        band = image.crop(box).convert("RGBA")
        white = Image.new("RGBA", band.size, "white")
        picture.paste(Image.alpha_composite(white, band).convert("RGB"), box)
    return picture
