"""Decode image files with Pillow: their peak memory, and pixels as transformers' image processors see them.

Every function runs on the thread that decodes the picture.
"""

import io
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from sie_triton.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

# Allowed formats. Others start programs, or allocate memory that no header bounds.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")

# Peak memory from the file to a rotated RGB picture, in bytes per pixel: upper bounds measured with Pillow 13
# (tests/process/inputs/test_image_memory.py). Pillow stores three channels in four bytes.
PEAK_BYTES: Mapping[str, int] = {"JPEG": 9, "PNG": 9, "WEBP": 17, "GIF": 9, "BMP": 9, "TIFF": 10}
# A progressive JPEG holds the coefficients of all its channels until its last scan.
PROGRESSIVE_PEAK_BYTES = 13

# Bytes per pixel of a rendered page: its pixels, and Pillow's copy.
DRAWN_BYTES = 8

# Pixels composited on white at once.
BAND = 1 << 18

# Numbers of TIFF tags.
BITS_PER_SAMPLE, SAMPLES_PER_PIXEL, ROWS_PER_STRIP, TILE_WIDTH, TILE_LENGTH = 258, 277, 278, 322, 323


def open_image(content: bytes, max_pixels: int) -> "Image":
    """Read the header of an image file. Any exception of Pillow's is a fault of the file.

    The WEBP decoder allocates its canvas here, so Pillow itself must know `max_pixels`. It raises
    DecompressionBombError beyond twice that number; the caller checks the exact limit.
    """
    from PIL import Image

    _ignore_warnings()
    Image.MAX_IMAGE_PIXELS = max_pixels
    return Image.open(io.BytesIO(content), formats=FORMATS)


@cache
def _ignore_warnings() -> None:
    """Ignore Pillow's warnings of damaged files: Python prints each of them, and remembers its text for ever."""
    warnings.filterwarnings("ignore", module=r"PIL\.")


def peak_bytes(image: "Image", where: str, max_pixels: int) -> int:
    """Estimate the peak memory of decoding from the header alone, in bytes.

    Raise InputError if a TIFF tile has more than `max_pixels`: the decoder allocates whole tiles, whatever the size of
    the image.
    """
    per_pixel = (
        PROGRESSIVE_PEAK_BYTES
        if image.info.get("progressive")
        else PEAK_BYTES["JPEG" if image.format in (None, "MPO") else image.format]
    )
    return image.width * image.height * per_pixel + _block_bytes(image, where, max_pixels)


def _block_bytes(image: "Image", where: str, max_pixels: int) -> int:
    """Memory for one TIFF tile or strip besides the image: the block, and its compressed form or a copy."""
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


def to_rgb(image: "Image") -> "Image":
    """Decode a picture to RGB, rotated by its EXIF orientation, with transparent parts on white."""
    return _on_white(_upright(image))


def _upright(image: "Image") -> "Image":
    """Rotate a picture by its EXIF orientation, if that is readable."""
    from PIL import ImageOps

    image.load()
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
