"""Containers whose parts are repeated, left out, moved and exchanged: their readers find valid parts, but too many."""

import re
import struct
from collections.abc import Callable, Mapping, Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz.damage import ANYWHERE, EDITS, Edit, edited, one

# Where a part begins, by the start of its container. Other files are texts: tags, lines and marks.
STARTS: Mapping[bytes, re.Pattern[bytes]] = {
    b"\xff\xd8": re.compile(rb"(?=\xff[\xc0-\xfe])"),
    b"GIF8": re.compile(rb"(?=[!,;])"),
    b"PK": re.compile(rb"(?=PK[\1\3\5])"),
    b"OggS": re.compile(rb"(?=OggS)"),
    b"fLaC": re.compile(rb"(?=\xff\xf8)"),
    b"ID3": re.compile(rb"(?=\xff[\xe0-\xff])"),
    b"": re.compile(rb"(?=<|[\n#*>\[|`-])"),
}
PNG, RIFF, BMP, TIFF = b"\x89PNG\r\n\x1a\n", b"RIFF", b"BM", b"II*\0"
BMP_HEADER, TIFF_TAG = 54, 12
ZIP_ENTRY, ZIP_END = b"PK\1\2", b"PK\5\6"

# Maximum number of parts of a text, and of repetitions of a part.
MAX_SPLITS, MAX_REPEATS = 200, 1 << 18

CHANGES = st.lists(st.tuples(st.integers(0, 7), ANYWHERE, ANYWHERE), min_size=1, max_size=4)


def restructured(
    files: Sequence[bytes], repair: Callable[[bytes], bytes] = bytes, max_bytes: int = 1 << 22
) -> SearchStrategy[bytes]:
    """Return a strategy of `files` with other parts, of at most `max_bytes`; some have a few bytes changed besides."""
    found = [parts(file) for file in files]

    def made(file: list[bytes], changes: list[Edit], edits: list[Edit], is_damaged: bool) -> bytes:
        data = joined(changed(file, changes, found, max_bytes))
        return repair(edited(data, edits) if is_damaged else data)

    return st.builds(made, one(found), CHANGES, EDITS, st.booleans())


def parts(file: bytes) -> list[bytes]:
    """Split a file into the start of its container, and its parts."""
    if file.startswith(PNG):
        return [PNG, *_chunks(file, len(PNG), lambda at: 12 + struct.unpack_from(">I", file, at)[0])]
    if file.startswith(RIFF):
        return [file[:12], *_chunks(file, 12, lambda at: 8 + (struct.unpack_from("<I", file, at + 4)[0] + 1 & ~1))]
    if file.startswith(BMP):
        runs = file[BMP_HEADER:]
        return [file[:BMP_HEADER], *(runs[i : i + 2] for i in range(0, min(len(runs), 2 * MAX_SPLITS), 2))]
    if file.startswith(TIFF) and file[4:8] == b"\x08\0\0\0":
        end = 10 + TIFF_TAG * file[8]
        return [file[:10], *(file[i : i + TIFF_TAG] for i in range(10, end, TIFF_TAG)), file[end:]]
    split = next(pattern for start, pattern in STARTS.items() if file.startswith(start)).split(file, MAX_SPLITS)
    return split if len(split) > 1 else [b"", *split]


def joined(pieces: list[bytes]) -> bytes:
    """Return the file of these parts; the sizes in its start are theirs."""
    start, *rest = pieces
    if start.startswith(RIFF):
        start = start[:4] + struct.pack("<I", 4 + sum(map(len, rest)) & 0xFFFF_FFFF) + start[8:]
    if start.startswith(TIFF):
        start = start[:8] + struct.pack("<H", min(max(0, len(rest) - 1), 0xFFFF))
    if rest and rest[-1].startswith(ZIP_END):
        entries = sum(len(each) for each in rest if each.startswith(ZIP_ENTRY))
        place = len(start) + sum(map(len, rest[:-1])) - entries
        rest[-1] = rest[-1][:12] + struct.pack("<II", entries, place) + rest[-1][20:]
    return start + b"".join(rest)


def changed(pieces: list[bytes], changes: Sequence[Edit], others: Sequence[list[bytes]], max_bytes: int) -> list[bytes]:
    """Return the parts with these changes."""
    start, *rest = pieces
    for kind, place, amount in changes:
        at = place % (len(rest) + 1)
        if kind <= 3 and at < len(rest):  # repeat one part, or several in a row
            row = rest[at : at + (1, 1, 2, 5)[kind]]
            room = (max_bytes - sum(map(len, rest))) // max(1, sum(map(len, row)))
            rest[at:at] = row * max(0, min(room, MAX_REPEATS, 1 << amount % 19))
        elif kind == 4:
            del rest[at : at + 1 + amount % 4]
        elif kind == 5:
            rest.insert(at, rest.pop(amount % len(rest)) if rest else b"")
        elif kind == 6:
            alike = [each for each in others if each[0][:2] == start[:2]]
            rest[at:at] = alike[amount % len(alike)][1:][:3] if alike else []
        elif at < len(rest):  # nest: the start of a part, often, before the whole
            rest.insert(at, rest[at][: 1 + amount % 64] * min(1 << amount % 14, MAX_REPEATS))
    return [start, *rest]


def _chunks(file: bytes, at: int, size: Callable[[int], int]) -> list[bytes]:
    """Cut a file into chunks from `at` on; the last one may be damaged."""
    found = []
    while at + 8 <= len(file):
        end = at + size(at)
        found.append(file[at:end])
        at = end
    return [*found, file[at:]]
