"""Damaged files: valid ones in which a few bytes are changed. Random bytes would test a reader's first check only."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

# Numbers that lengths, counts and offsets should not have.
HOSTILE = (0, 1, 2, -1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)
HOSTILE += (0x7FFF_FFFF_FFFF_FFFF, 1 << 63, (1 << 64) - 1, 10, 1000, 1 << 20, 1 << 31, 1 << 40)
HOSTILE_TEXTS = (b"0", b"-1", b"1e999", b"NaN", b"99999999999999999999", b"1" * 5000, b"-0", b"0.5", b"", b"null")

WIDTHS = (1, 2, 4, 8)
DIGITS = re.compile(rb"-?[0-9]+")

# Bytes that begin or end something in texts.
MARKS = (b"\0", b"\xff", b"\n", b'"', b"\\", b"{", b"[", b"]", b"}", b"<", b">", b"(", b"/", b"\xed\xa0\x80", b"\xc3")

# Hypothesis prefers small numbers; a multiplication spreads them.
SPREAD, END = 0x9E37_79B1, 1 << 24

ANYWHERE = st.integers(0, END - 1).map(lambda number: number * SPREAD % END)

# One edit: which, where in the file, and how much.
Edit = tuple[int, int, int]
EDIT = st.tuples(st.integers(0, 15), st.one_of(st.integers(0, 64), ANYWHERE, ANYWHERE), ANYWHERE)
EDITS = st.one_of(st.lists(EDIT, max_size=1), st.lists(EDIT, max_size=4))


def one(values: Sequence[Any]) -> SearchStrategy[Any]:
    """Return a strategy of `values`, as sampled_from does, whose name does not contain all of them."""
    return ANYWHERE.map(lambda number: values[number % len(values)])


def damaged(files: Sequence[bytes], repair: Callable[[bytes], bytes] | None = None) -> SearchStrategy[bytes]:
    """Return a strategy of `files` with a few edits; `repair` corrects the checksums of half of them."""
    found = list(files)

    def made(file: bytes, edits: list[Edit], is_repaired: bool) -> bytes:
        data = edited(file, edits, found)
        return repair(data) if repair and is_repaired else data

    return st.builds(made, one(found), EDITS, st.booleans() if repair else st.just(False))


def edited(file: bytes, edits: Sequence[Edit], others: Sequence[bytes] = (b"",)) -> bytes:
    """Return a file with these edits; `others` are files to take pieces from."""
    data = bytearray(file)
    for kind, place, amount in edits:
        at = place % (len(data) + 1)
        _OF_KINDS[kind % len(_OF_KINDS)](data, at, amount, others)
    return bytes(data)


def _flip(data: bytearray, at: int, amount: int, _: Sequence[bytes]) -> None:
    if at < len(data):
        data[at] ^= 1 << amount % 8


def _set(data: bytearray, at: int, amount: int, _: Sequence[bytes]) -> None:
    if at < len(data):
        data[at] = amount % 256


def _cut_end(data: bytearray, at: int, amount: int, _: Sequence[bytes]) -> None:
    del data[at:]


def _cut(data: bytearray, at: int, amount: int, _: Sequence[bytes]) -> None:
    del data[at : at + 1 + amount % 64]


def _insert(data: bytearray, at: int, amount: int, _: Sequence[bytes]) -> None:
    data[at:at] = MARKS[amount % len(MARKS)] * (1 + amount // len(MARKS) % 9)


def _repeat(data: bytearray, at: int, amount: int, _: Sequence[bytes]) -> None:
    data[at:at] = bytes(data[at : at + 1 + amount % 256]) * (1 + amount // 256 % 16)


def _exchange(data: bytearray, at: int, amount: int, _: Sequence[bytes]) -> None:
    size, other = 1 + amount % 32, amount * 257 % (len(data) + 1)
    if abs(at - other) >= size and max(at, other) + size <= len(data):
        first, second = data[at : at + size], data[other : other + size]
        data[at : at + size], data[other : other + size] = second, first


def _number(data: bytearray, at: int, amount: int, _: Sequence[bytes]) -> None:
    width, order = WIDTHS[amount % 4], "little" if amount // 4 % 2 else "big"
    value = HOSTILE[amount // 8 % len(HOSTILE)] % (1 << 8 * width)
    data[at : at + width] = value.to_bytes(width, order)  # type: ignore[arg-type]


def _zeros(data: bytearray, at: int, amount: int, _: Sequence[bytes]) -> None:
    size = min(1 + amount % 64, len(data) - at)
    data[at : at + size] = bytes(size)


def _digits(data: bytearray, at: int, amount: int, _: Sequence[bytes]) -> None:
    """Replace the first number in digits from `at` on."""
    if found := DIGITS.search(data, at):
        data[found.start() : found.end()] = HOSTILE_TEXTS[amount % len(HOSTILE_TEXTS)]


def _splice(data: bytearray, at: int, amount: int, others: Sequence[bytes]) -> None:
    other = others[amount % len(others)]
    data[at:] = other[min(at, amount // 7 % (len(other) + 1)) :]


def _deepen(data: bytearray, at: int, amount: int, _: Sequence[bytes]) -> None:
    data[at:at] = (b"[", b"{", b"(", b"<<", b'{"a":', b"\x91", b"- ")[amount % 7] * (1 << amount // 7 % 14)


_OF_KINDS = (
    _flip,
    _set,
    _number,
    _digits,
    _cut,
    _cut_end,
    _insert,
    _repeat,
    _exchange,
    _zeros,
    _splice,
    _number,
    _digits,
    _flip,
    _set,
    _deepen,
)
