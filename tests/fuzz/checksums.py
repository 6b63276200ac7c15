"""Checksums of damaged files corrected, so that readers look further."""

import struct
import zlib

OGG = b"OggS"


def repaired_png(file: bytes) -> bytes:
    """Return a PNG with the checksums that its chunks should have; other files as they are."""
    if not file.startswith(b"\x89PNG\r\n\x1a\n"):
        return file
    made, at = bytearray(file), 8
    while at + 12 <= len(made):
        (size,) = struct.unpack_from(">I", made, at)
        end = at + 8 + size
        if end + 4 > len(made):
            break
        struct.pack_into(">I", made, end, zlib.crc32(made[at + 4 : end]))
        at = end + 4
    return bytes(made)


def repaired_ogg(file: bytes) -> bytes:
    """Return an Ogg file with the checksums that its pages should have; other files as they are."""
    if not file.startswith(OGG):
        return file
    made, at = bytearray(file), 0
    while made[at : at + 4] == OGG and at + 27 <= len(made):
        num_segments = made[at + 26]
        end = at + 27 + num_segments + sum(made[at + 27 : at + 27 + num_segments])
        made[at + 22 : at + 26] = bytes(4)
        struct.pack_into("<I", made, at + 22, _crc_of_ogg(made[at:end]))
        at = end
    return bytes(made)


def _table() -> list[int]:
    table = []
    for number in range(256):
        value = number << 24
        for _ in range(8):
            value = (value << 1 ^ 0x04C11DB7 if value & 0x8000_0000 else value << 1) & 0xFFFF_FFFF
        table.append(value)
    return table


_OF_BYTES = _table()


def _crc_of_ogg(page: bytes) -> int:
    value = 0
    for byte in page:
        value = (value << 8 & 0xFFFF_FFFF) ^ _OF_BYTES[(value >> 24) ^ byte]
    return value
