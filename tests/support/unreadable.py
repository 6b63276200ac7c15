"""Image files that are damaged, are not images, or would be too costly to decode."""

import io
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np
from PIL import Image

from tests.support.pictures import picture, saved

# Error messages after the name of the image.
BROKEN, NONE, TOO_LARGE, EMPTY = "cannot be decoded", "is not an image that can be read", "pixels; ", "is empty"


@cache
def unreadable() -> dict[str, tuple[bytes, str]]:
    """Name → the file, and a part of its error message."""
    return {**dict(_truncated()), **dict(_of_another_kind()), **dict(_too_large()), **dict(_damaged())}


def _truncated() -> Iterator[tuple[str, tuple[bytes, str]]]:
    image = picture(200, 150)
    for kind, options in (("PNG", {}), ("JPEG", {}), ("WEBP", {}), ("GIF", {}), ("BMP", {}), ("TIFF", {})):
        whole = saved(image.convert("P") if kind == "GIF" else image, kind, **options)
        for share in (0.1, 0.5, 0.9):
            yield f"{kind} cut at {share:.0%}", (whole[: int(len(whole) * share)], "")
        yield f"{kind} of four bytes", (whole[:4], NONE)


def _of_another_kind() -> Iterator[tuple[str, tuple[bytes, str]]]:
    yield "nothing", (b"", EMPTY)
    yield "text", (b"hello, I am no image", NONE)
    yield "zeros", (bytes(10_000), NONE)
    yield "noise", (np.random.default_rng(0).bytes(10_000), NONE)
    yield "svg", (b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', NONE)
    yield "postscript", (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n", NONE)
    yield "html", (b"<html><body>404</body></html>", NONE)
    yield "zip", (b"PK\x03\x04" + bytes(100), NONE)
    yield "a format that is not read", (saved(picture(), "PPM"), NONE)
    yield "an icon", (saved(picture(32, 32), "ICO"), NONE)


def _too_large() -> Iterator[tuple[str, tuple[bytes, str]]]:
    yield "a png of a million million pixels", (png_header(1_000_000, 1_000_000) + chunk(b"IDAT", b""), TOO_LARGE)
    yield "a png bomb", (png(11_000, 9_500), TOO_LARGE)
    yield "50,000 × 1", (saved(Image.new("RGB", (50_000, 1))), TOO_LARGE)
    yield "1 × 50,000", (saved(Image.new("RGB", (1, 50_000))), TOO_LARGE)
    yield "65,501 × 400", (png_header(65_501, 400) + chunk(b"IDAT", b""), "no side may be longer than 65500")
    yield "a gif of 65,535 × 65,535", (patched(saved(picture().convert("P"), "GIF"), 6, b"\xff" * 4), TOO_LARGE)
    yield "a webp of 65,535 × 65,535", (webp_canvas(65_535, 65_535), TOO_LARGE)
    yield "a webp of 12,000 × 8,000, transparent", (transparent_webp(12_000, 8_000), "bytes of memory to decode")
    yield "a tiff of 64 × 64 in a tile of 28,000 × 28,000", (tiled_tiff(64, 28_000), "tiles of 28000 × 28000 pixels")
    yield "a tiff of 64 × 64 in a tile of 4,000,000,000", (tiled_tiff(64, 4_000_000_000), "tiles of 4000000000")
    yield "a tiff in tiles of no size", (tiled_tiff(64, 0), "tiles of 0 × 0")
    large = saved(picture(), "JPEG", progressive=True)
    large = patched(large, large.index(b"\xff\xc2") + 5, struct.pack(">HH", 9000, 9000))
    yield "a jpeg of 81 million pixels and 30 scans", (large[:-2] + b"\xff\xda\x00\x08" * 20 + large[-2:], "scans")
    yield "a jpeg of a thousand scans", (saved(picture(), "JPEG") + b"\xff\xda\x00\x08" * 1000, "scans")


def _damaged() -> Iterator[tuple[str, tuple[bytes, str]]]:
    whole = saved(picture(120, 90))
    yield "png, its width changed", (patched(whole, 16, struct.pack(">I", 121)), "")
    yield "png, nothing in its data", (png_header(10, 10) + chunk(b"IDAT", b"") + chunk(b"IEND", b""), BROKEN)
    yield "png, noise in its data", (png_header(10, 10) + chunk(b"IDAT", bytes(50)) + chunk(b"IEND", b""), BROKEN)
    yield "png of 0 × 0", (png_header(0, 0) + chunk(b"IEND", b""), "")
    yield "tiff that leads behind its end", (b"II*\x00\xff\xff\xff\x7f", NONE)
    yield "tiff that leads to itself", (b"II*\x00\x08\x00\x00\x00\x00\x00\x08\x00\x00\x00", "")
    yield "bmp of a negative size", (b"BM" + bytes(12) + struct.pack("<IiiHH", 40, -5, -5, 1, 24) + bytes(24), "")
    yield "webp without anything", (b"RIFF\x0c\x00\x00\x00WEBPVP8 \x00\x00\x00\x00", "")


def readable() -> dict[str, bytes]:
    """Files with harmless oddities, which are read."""
    plain = picture(80, 60)
    exif, icc = b"Exif\x00\x00MM\x00*\xff\xff\xff\xff", b"not a profile"
    first, second = picture(), picture(seed=1)
    of_two = io.BytesIO()
    first.save(of_two, "MPO", save_all=True, append_images=[second])  # as many phones save photographs
    return {
        "a JPEG of two pictures": of_two.getvalue(),
        "damaged exif": saved(plain, "JPEG", exif=exif),
        "damaged icc": saved(plain, "JPEG", icc_profile=icc),
        "damaged icc in a png": saved(plain, icc_profile=icc),
        "something behind the end": saved(plain) + b"behind",
        "one pixel": saved(Image.new("RGB", (1, 1), "red")),
    }


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


def png(width: int, height: int) -> bytes:
    """PNG that is all black, in few bytes."""
    packer, data = zlib.compressobj(1), io.BytesIO()
    row = bytes(3 * width + 1)
    for _ in range(height):
        data.write(packer.compress(row))
    data.write(packer.flush())
    return png_header(width, height) + chunk(b"IDAT", data.getvalue()) + chunk(b"IEND", b"")


def webp_canvas(width: int, height: int) -> bytes:
    """WebP header alone, of a canvas that the decoder would allocate."""
    extended = b"VP8X" + struct.pack("<I", 10) + bytes(4)
    extended += struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    lossless = saved(Image.new("RGBA", (8, 8)), "WEBP", lossless=True)[12:]
    return b"RIFF" + struct.pack("<I", 4 + len(extended) + len(lossless)) + b"WEBP" + extended + lossless


def transparent_webp(width: int, height: int) -> bytes:
    """WebP of one colour: whatever its size, only the size in its header differs."""
    small = saved(Image.new("RGBA", (8, 8), (9, 8, 7, 100)), "WEBP", lossless=True)
    return patched(small, small.index(b"VP8L") + 9, struct.pack("<I", width - 1 | height - 1 << 14 | 1 << 28))


def tiled_tiff(side: int, tile: int, bits: int = 8) -> bytes:
    """An image of `side` × `side` in one compressed tile of `tile` × `tile`, which libtiff allocates whole."""
    data = zlib.compress(bytes(min(3 * tile * tile * bits // 8, 1 << 20)))
    entries = [(256, 4, side), (257, 4, side), (258, 3, bits), (259, 3, 8), (262, 3, 1), (277, 3, 1)]
    entries += [(322, 4, tile), (323, 4, tile), (324, 4, 8 + 2 + 12 * 10 + 4), (325, 4, len(data))]
    directory = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in entries)
    return b"II*\x00" + struct.pack("<IH", 8, len(entries)) + directory + bytes(4) + data


def patched(file: bytes, place: int, with_: bytes) -> bytes:
    return file[:place] + with_ + file[place + len(with_) :]


Read = Callable[[bytes], object]
