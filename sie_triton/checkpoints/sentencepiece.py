"""Reader of SentencePiece models, spm.model: the few fields of the Protocol Buffers message that a tokenizer needs.

Standard library only: render and preprocess read these without torch.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import first_line
from sie_triton.errors import LoadError

# Field numbers from sentencepiece_model.proto.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
PIECE, SCORE, KIND = 1, 2, 3
MODEL_TYPE, UNKNOWN = 3, 40
CHARSMAP = 2

CONTROL, USER_DEFINED = 3, 4
UNIGRAM = 1

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """A unigram model.

    `pieces` are in the order of their ids, with their scores. `added` are the pieces that are matched literally, and
    whether each is special. `charsmap` replaces characters before tokenization; it may be empty.
    """

    pieces: tuple[tuple[str, float], ...]
    added: tuple[tuple[str, bool], ...]
    unknown: int
    charsmap: bytes

    @classmethod
    def read(cls, path: Path) -> "SentencePiece":
        """Read the file; raise LoadError if it is not a unigram model."""
        try:
            return cls._of(path, path.read_bytes())
        except (OSError, ValueError, TypeError, AttributeError, IndexError, struct.error) as exc:
            raise LoadError(f"{path}: cannot be read: {first_line(exc)}", "corrupt") from exc

    @classmethod
    def _of(cls, path: Path, content: bytes) -> "SentencePiece":
        pieces, added = [], []
        trainer: dict[int, Any] = {}
        normalizer: dict[int, Any] = {}
        for number, value in _fields(content):
            if number == PIECES:
                piece = dict(_fields(value))
                text = piece[PIECE].decode() if PIECE in piece else ""
                pieces.append((text, struct.unpack("<f", piece.get(SCORE, bytes(4)))[0]))
                if piece.get(KIND) in (CONTROL, USER_DEFINED):
                    added.append((text, piece[KIND] == CONTROL))
            elif number == TRAINER:
                trainer = dict(_fields(value))
            elif number == NORMALIZER:
                normalizer = dict(_fields(value))
        if trainer.get(MODEL_TYPE, UNIGRAM) != UNIGRAM:
            raise LoadError(f"{path}: is not a unigram model; other types cannot be served", "unsupported")
        unknown = trainer.get(UNKNOWN, 0)
        if not 0 <= unknown < len(pieces):
            raise ValueError("unk_id is not the id of a piece")
        return cls(tuple(pieces), tuple(added), unknown, normalizer.get(CHARSMAP, b""))


def _fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field; a value is an int or bytes."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire == BYTES:
            size, at = _varint(message, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise ValueError("is not a Protocol Buffers message")
        if at + size > len(message):
            raise ValueError("is truncated")
        yield number, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at`, and the offset after it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at
        if shift > 63:
            raise ValueError("is not a Protocol Buffers message")
