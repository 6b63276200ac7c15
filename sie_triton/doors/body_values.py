"""Count the values of a body and their nesting depth before it is decoded.

A byte of JSON or msgpack may become sixty bytes of objects, so the size of a body alone does not bound its memory.
"""

import re
from struct import unpack_from
from typing import Any

from sie_triton.doors.failures import Failure, invalid
from sie_triton.doors.limits import DoorLimits

# Maximum nesting depth of objects and lists. No route needs more than ten.
MAX_DEPTH = 64

# Upper bound for the memory of one decoded value besides its text, in bytes: an object with one member takes 232.
VALUE_BYTES = 128


# A string of JSON with its quotes. Possessive quantifiers, so that no input causes backtracking.
STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def json_values(body: bytes | bytearray, most: int = DoorLimits.num_values) -> int:
    """Return an upper bound for the number of values; Failure 413 beyond `most`.

    Each value except the first follows a comma, a colon or a bracket. Characters within strings are excluded only if
    the count would otherwise be too large, because finding the strings takes longer.

    >>> json_values(b'{"items": ["a", "b"]}'), json_values(b"[[],[]]")
    (4, 5)
    """
    num_values = 1 + _separators(body)
    return num_values if num_values <= most else _values_outside_strings(body, most)


def _values_outside_strings(body: bytes | bytearray, most: int) -> int:
    num_values, end = 1, 0
    for string in STRING.finditer(body):
        num_values = _allowed(num_values + _separators(body[end : string.start()]), most)
        end = string.end()
    return _allowed(num_values + _separators(body[end:]), most)


def _separators(text: bytes | bytearray) -> int:
    return sum(map(text.count, (b",", b"[", b"{")))


def check_depth(value: Any) -> None:
    """Raise Failure 400 if lists and dictionaries are nested deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            member
            for each in level
            if isinstance(each, (dict, list))
            for member in (each.values() if isinstance(each, dict) else each)
        ]
        if not level:
            return
    if any(isinstance(each, (dict, list)) for each in level):
        raise _too_deep()


def msgpack_values(body: bytes | bytearray, most: int = DoorLimits.num_values) -> int:
    """Return the number of values; Failure 413 beyond `most`, 400 if nested deeper than MAX_DEPTH or truncated.

    Reads only the header of each value and decodes nothing.

    >>> import msgpack
    >>> msgpack_values(msgpack.packb({"items": ["a", "b"], "n": 1.5}))
    7
    """
    num_values, position, size = 0, 0, len(body)
    left = [1]  # remaining members of each enclosing container
    while left:
        if not left[-1]:
            left.pop()
            continue
        left[-1] -= 1
        num_values += 1
        if position >= size:
            raise invalid("body", "is not msgpack: it ends in the middle of a value")
        num_bytes, num_members = _head(body, position)
        position += num_bytes
        if num_members:
            _allowed(num_values + num_members, most)
            if len(left) > MAX_DEPTH:
                raise _too_deep()
            left.append(num_members)
    if position < size:
        raise invalid("body", "is not msgpack: bytes follow its value")
    return _allowed(num_values, most)


def _head(body: bytes | bytearray, position: int) -> tuple[int, int]:
    """Return the size in bytes of the value at `position` without its members, and the number of members.

    Implements https://github.com/msgpack/msgpack/blob/master/spec.md. A map has two members for each pair.
    """
    first = body[position]
    if first < 0x80 or first >= 0xE0:
        return 1, 0
    if first < 0xC0:
        return _fixed(first)
    num_bytes, length_code, per_length = HEADS[first - 0xC0]
    if not length_code:
        return num_bytes, 0
    try:
        (length,) = unpack_from(length_code, body, position + 1)
    except Exception as exc:
        raise invalid("body", "is not msgpack: it ends in the middle of a length") from exc
    return (num_bytes, length * per_length) if per_length else (num_bytes + length, 0)


def _fixed(first: int) -> tuple[int, int]:
    """Return size and members of a map of up to 15 pairs, a list of up to 15 members or a string of up to 31 bytes."""
    if first >= 0xA0:
        return 1 + (first & 0x1F), 0
    return 1, (first & 0x0F) * (1 if first >= 0x90 else 2)


# First bytes from 0xC0 on: size of the header in bytes, format of the length in it, and members per unit of the length.
# For strings, binary data and extensions, the length counts bytes, not members.
HEADS: tuple[tuple[int, str, int], ...] = (
    *[(1, "", 0)] * 4,  # nil, the unused first byte, false, true
    *[(2, ">B", 0), (3, ">H", 0), (5, ">I", 0)],  # binary data
    *[(3, ">B", 0), (4, ">H", 0), (6, ">I", 0)],  # extensions
    *[(5, "", 0), (9, "", 0)],  # floats
    *[(2, "", 0), (3, "", 0), (5, "", 0), (9, "", 0)] * 2,  # integers without and with a sign
    *[(3, "", 0), (4, "", 0), (6, "", 0), (10, "", 0), (18, "", 0)],  # extensions of a fixed size
    *[(2, ">B", 0), (3, ">H", 0), (5, ">I", 0)],  # strings
    *[(3, ">H", 1), (5, ">I", 1)],  # lists
    *[(3, ">H", 2), (5, ">I", 2)],  # maps
)


def _allowed(num_values: int, most: int) -> int:
    if num_values > most:
        raise Failure("too_large", f"body: has more than {most} values; send fewer items per request")
    return num_values


def _too_deep() -> Failure:
    return invalid("body", f"objects and lists are nested more than {MAX_DEPTH} levels deep")
