"""The fields of a serialized protobuf message, without an object for each.

An empty field takes two bytes, and its object about fifty: the fields of a client's message are counted before it is
parsed.
"""

from collections.abc import Iterator

from google.protobuf.message import DecodeError

from sie_triton.errors import InputError

# Maximum length of a number, in bytes, and bound of a tag: a field's number and its kind.
MAX_VARINT_BYTES, TAGS = 10, 2**32

# Kinds of fields: a number, eight bytes, a length with so many bytes, four bytes. Triton's messages have no groups.
VARINT, FIXED_64, SIZED, FIXED_32 = 0, 1, 2, 5


def fields(message: bytes, max_fields: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field of a message, but not of the messages in it.

    Raise DecodeError at bytes that are no field, and InputError beyond `max_fields`.

    >>> [*fields(bytes([0x0A, 1, 65, 0x2A, 0]), 2)]
    [(1, 0, 3), (5, 3, 5)]
    """
    at, num_fields = 0, 0
    while at < len(message):
        num_fields += 1
        if num_fields > max_fields:
            raise InputError(f"the request has more than {max_fields} fields")
        start = at
        tag, at = _varint(message, at)
        at = _end(message, tag & 7, at)
        if at > len(message) or not 8 <= tag < TAGS:
            raise DecodeError(f"no field at byte {start}")
        yield tag >> 3, start, at


def _end(message: bytes, kind: int, at: int) -> int:
    """Return the end of a field of this kind whose content begins at `at`."""
    if kind == SIZED:
        size, at = _varint(message, at)
        return at + size
    if kind == VARINT:
        return _varint(message, at)[1]
    if kind in (FIXED_64, FIXED_32):
        return at + (8 if kind == FIXED_64 else 4)
    raise DecodeError(f"a field of kind {kind}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at`, and its end."""
    value = 0
    for place, byte in enumerate(message[at : at + MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise DecodeError(f"no number at byte {at}")
