"""Image files whose containers have very many parts, each valid in itself: Pillow reads containers in Python."""

import struct
import zlib
from collections.abc import Sequence
from functools import cache

from sie_triton.models.inputs.limits import LIMITS
from tests.support.pictures import picture, saved
from tests.support.unreadable import chunk

# A tag of a TIFF: number, type, count, and its value or its data.
Tag = tuple[int, int, int, int | bytes]
SHORT, LONG, RATIONAL, UNDEFINED = 3, 4, 5, 7
ORIENTATION, RESOLUTION, STRIPS, COLORS, EXIF = 274, 282, 273, 320, 34665
SIDE = 64

JPEG, PNG, WEBP = (saved(picture(SIDE, SIDE), kind) for kind in ("JPEG", "PNG", "WEBP"))
GIF = saved(picture(SIDE, SIDE).convert("P"), "GIF")
PIXELS = PNG.index(b"IDAT") - 4


@cache
def of_many_parts() -> dict[str, bytes]:
    """Return files that must be refused, by name."""
    exif = ifd([(ORIENTATION, RATIONAL, LIMITS.max_exif_bytes // 8, b"\0\0\0\1" * (LIMITS.max_exif_bytes // 4))])
    pieces = segment(0xE1, b"Exif\0\0" + bytes(65_000)) * 60 + segment(0xE1, b"Exif\0\0x") * LIMITS.max_header_parts
    megabyte = zlib.compress(bytes(1 << 20))
    text = b"Raw profile type exif\0\n\n\n" + exif.hex().encode()
    return {
        "jpeg, padding": jpeg(b"\xff" * LIMITS.max_header_parts),
        "jpeg, markers without data": jpeg(b"\xff\xd0" * LIMITS.max_header_parts),
        "jpeg, escapes": jpeg(b"\xff\0" * LIMITS.max_header_parts),
        "jpeg, empty segments": jpeg(segment(0xE5, b"") * LIMITS.max_header_parts),
        "jpeg, pieces of exif": jpeg(pieces),
        "jpeg, headers of 21,000 components": jpeg(segment(0xC0, b"\x08\0\x40\0\x40\x03" + b"\1\x11\0" * 21_000) * 64),
        "jpeg, quantization tables": jpeg(segment(0xDB, (b"\0" + b"\1" * 64) * 1000) * 64),
        "jpeg, resources": jpeg(segment(0xED, b"Photoshop 3.0\0" + (b"8BIM\0\1\0\0" + bytes(4)) * 5400) * 64),
        "png, empty chunks": png(chunk(b"abCd", b"") * LIMITS.max_header_parts),
        "png, empty chunks of pixels": png(chunk(b"IDAT", b"") * LIMITS.max_image_parts),
        "png, empty chunks behind the pixels": png(b"", chunk(b"abCd", b"") * LIMITS.max_image_parts),
        "png, exif": png(chunk(b"eXIf", exif)),
        "png, exif behind the pixels": png(b"", chunk(b"eXIf", exif)),
        "png, exif in a text": png(b"", chunk(b"tEXt", text)),
        "png, compressed profiles": png(
            chunk(b"iCCP", b"a\0\0" + megabyte) * LIMITS.max_dear_parts + chunk(b"iCCP", b"")
        ),
        "png, texts that end wrongly": png(
            chunk(b"zTXt", b"a\0\0" + megabyte[:-1] + b"x") * (LIMITS.max_dear_parts + 1)
        ),
        "png, profiles behind the pixels": png(b"", chunk(b"iCCP", b"a\0\0" + megabyte) * (LIMITS.max_dear_parts + 1)),
        "png, a megabyte in each kilobyte of text": png(
            b"".join(chunk(b"zTXt", b"%d\0\0" % i + megabyte) for i in range(65))
        ),
        "webp, exif": saved(picture(SIDE, SIDE), "WEBP", exif=b"Exif\0\0" + exif),
        "gif, comments": gif(b"!\xfe\1x\0" * LIMITS.max_header_parts),
        "gif, one comment": gif(b"!\xfe" + b"\1x" * LIMITS.max_header_parts + b"\0"),
        "gif, one extension": gif(b"!\xff" + b"\1x" * LIMITS.max_header_parts + b"\0"),
        "gif, zeros": gif(bytes(LIMITS.max_header_parts)),
        "bmp, steps": bmp(b"\0\2\0\0" * LIMITS.max_image_parts, 100),
        "bmp, ends of lines": bmp(b"\1\7\0\0" * 4000, 1 + int(LIMITS.max_rle_pixels**0.5)),
        "tiff, strips": tiff(
            (STRIPS, LONG, LIMITS.max_number_bytes // 4, bytes(LIMITS.max_number_bytes)), (278, SHORT, 1, 1)
        ),
        "tiff, strips that are read": tiff(
            (STRIPS, LONG, LIMITS.max_image_parts + 1, bytes(4 * LIMITS.max_image_parts + 4)),
            (278, SHORT, 1, 1),
        ),
        "tiff, tags": tiff(*((700 + i, SHORT, 1, 5) for i in range(LIMITS.max_header_parts))),
        "tiff, fractions": tiff((RESOLUTION, RATIONAL, LIMITS.max_number_bytes // 8, bytes(LIMITS.max_number_bytes))),
        "tiff, colors": tiff(
            (262, SHORT, 1, 3),
            (COLORS, SHORT, LIMITS.max_number_bytes // 2, bytes(LIMITS.max_number_bytes)),
        ),
    }


def of_unread_parts() -> dict[str, bytes]:
    """Return files that are read without their many parts, by name."""
    pixel = zlib.compress(bytes(4))
    frames = b"".join(
        chunk(b"fcTL", struct.pack(">5I2H2B", 2 * i, 1, 1, 0, 0, 1, 10, 0, 0))
        + chunk(b"fdAT", struct.pack(">I", 2 * i + 1) + pixel)
        for i in range(LIMITS.max_header_parts)
    )
    moving = saved(picture(16, 16), "WEBP", save_all=True, append_images=[picture(16, 16, seed=1)])
    frame = moving[moving.rindex(b"ANMF") :]
    webp = moving[12:] + frame * LIMITS.max_header_parts
    xmp, resource = segment(0xE1, b"http://ns.adobe.com/xmp/extension/\0" + bytes(65_000)), bytes(5_000_000)
    further = struct.pack("<HHHII", 1, 50_000, SHORT, LIMITS.max_number_bytes, 8) + bytes(
        4 + 2 * LIMITS.max_number_bytes
    )
    return {
        "apng": png(chunk(b"acTL", struct.pack(">II", LIMITS.max_header_parts, 0)), frames),
        "gif": GIF[:-1] + b",\0\0\0\0\1\0\1\0\0\2\2\x4c\1\0" * LIMITS.max_image_parts + b";",
        "webp": b"RIFF" + struct.pack("<I", 4 + len(webp)) + b"WEBP" + webp,
        "webp, chunks": riff_with(
            saved(picture(), "WEBP", exif=b"Exif\0\0II*\0" + bytes(4)), b"abcd\0\0\0\0" * LIMITS.max_image_parts
        ),
        "jpeg, trailer": JPEG + b"\xff\xd0" * LIMITS.max_image_parts,
        "jpeg, bytes like markers": jpeg(segment(0xE5, b"\xdb" * 65_000) * 100),
        "jpeg, extended xmp": jpeg(xmp * 100),
        "png, one private chunk": png(chunk(b"caBX", bytes(6_000_000))),
        "tiff, resources": tiff((34377, 1, len(resource), resource), (37724, UNDEFINED, len(resource), resource)),
        "bmp, runs of a pixel": bmp((b"\1\7" * 300 + b"\0\0") * 300, 300),
        "tiff, tags with the same data": tiff(*((40_000 + i, UNDEFINED, 90_000, 8) for i in range(60)), rest=90_000),
        "tiff, a further directory": tiff((EXIF, LONG, 1, 8 + 2 + 12 * 9 + 4), rest=further),
        "tiff, its own successor": tiff().replace(bytes(4) + bytes(SIDE), struct.pack("<I", 8) + bytes(SIDE), 1),
    }


def of_each() -> list[bytes]:
    """Return small files that have each kind of part a few times."""
    tags: list[Tag] = [(ORIENTATION, SHORT, 1, 6), (RESOLUTION, RATIONAL, 2, bytes(range(16))), (EXIF, LONG, 1, 8)]
    exif = ifd([*tags, (50_000, SHORT, 9, bytes(18))])
    resource = b"Photoshop 3.0\0" + b"8BIM\3\xed\0\0\0\0\0\x10" + bytes(16)
    index = ifd([(0xB001, LONG, 1, 2), (0xB002, UNDEFINED, 32, bytes(32))])
    jpegs = segment(0xE1, b"Exif\0\0" + exif) + segment(0xE2, b"ICC_PROFILE\0\1\1x") + segment(0xED, resource)
    text = zlib.compress(bytes(9999))
    chunks = {b"eXIf": exif, b"zTXt": b"a\0\0" + text, b"iCCP": b"b\0\0" + text, b"iTXt": b"c\0\1\0\0\0" + text}
    chunks |= {b"tEXt": b"Raw profile type exif\0\n\n\n" + exif.hex().encode(), b"acTL": struct.pack(">II", 2, 0)}
    return [
        jpeg(jpegs + segment(0xFE, b"comment") + b"\xff\xff\xff\0"),
        jpeg(segment(0xE2, b"MPF\0" + index) + segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x/>")),
        png(b"".join(chunk(name, data) for name, data in chunks.items()), chunk(b"tIME", bytes(7))),
        gif(b"!\xfe\7comment\3abc\0!\xff\x0bNETSCAPE2.0\3\1\0\0\0!\xf9\4\1\0\0\0\0"),
        bmp(b"\1\7\0\0\0\2\1\1\0\4abcd\xff\1" * 9, 40),
        tiff(*tags, (COLORS, SHORT, 768, bytes(1536))),
        tiff((STRIPS, LONG, SIDE, b"\x08\0\0\0" * SIDE), (278, SHORT, 1, 1)),
        saved(picture(SIDE, SIDE), "WEBP", exif=b"Exif\0\0" + exif, icc_profile=b"x", xmp=b"<x/>"),
    ]


def segment(marker: int, data: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", 2 + len(data)) + data


def jpeg(parts: bytes) -> bytes:
    return JPEG[:2] + parts + JPEG[2:]


def png(parts: bytes, behind: bytes = b"") -> bytes:
    return PNG[:PIXELS] + parts + PNG[PIXELS:-12] + behind + PNG[-12:]


def gif(parts: bytes) -> bytes:
    start = 13 + (3 << (GIF[10] & 7) + 1)
    return GIF[:start] + parts + GIF[start:]


def bmp(runs: bytes, side: int) -> bytes:
    """A run-length encoded BMP of `side` × `side`."""
    colors = b"".join(bytes([i, 0, 255 - i, 0]) for i in range(256))
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, 14 + len(header) + len(colors)) + header + colors + runs + b"\0\1"


def ifd(tags: Sequence[Tag], rest: int | bytes = 0) -> bytes:
    """A TIFF of one directory, the data of its tags, and `rest`: bytes, or a number of zeros."""
    place, entries, data = 8 + 2 + 12 * len(tags) + 4, b"", b""
    for number, kind, count, value in tags:
        entries += struct.pack("<HHII", number, kind, count, value if isinstance(value, int) else place + len(data))
        data += b"" if isinstance(value, int) else value
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4) + data + bytes(rest)


def tiff(*tags: Tag, rest: int | bytes = SIDE * SIDE) -> bytes:
    """A grey picture of SIDE × SIDE without compression, with these tags besides or instead of its own."""
    plain = {256: (LONG, SIDE), 257: (LONG, SIDE), 258: (SHORT, 8), 259: (SHORT, 1), 262: (SHORT, 1), 277: (SHORT, 1)}
    plain |= {STRIPS: (LONG, 8), 278: (LONG, SIDE)}
    replaced = {tag[0] for tag in tags}
    own = [(number, kind, 1, value) for number, (kind, value) in plain.items() if number not in replaced]
    return ifd([*own, *tags], rest)


def riff_with(file: bytes, chunks: bytes) -> bytes:
    return file[:4] + struct.pack("<I", len(file) - 8 + len(chunks)) + file[8:] + chunks
