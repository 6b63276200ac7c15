"""Texts, in UTF-8."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sie_triton.contract.tensors import ENTITIES, LABELS, QUERY, TEXT
from sie_triton.errors import InputError
from sie_triton.models.inputs.base import InputKind


class TextInput(InputKind):
    """Texts. Sizes are in characters."""

    name = "text"
    tensors = (TEXT, QUERY, LABELS, ENTITIES)
    max_elements = 128
    max_size = 128 * 1024
    chunk_size = 32 * 1024
    nothing_read = "has no tokens for this model; send another text"

    def decode(self, raw: bytes, where: str) -> str:
        try:
            return raw.decode()
        except UnicodeDecodeError as exc:
            raise InputError.at(
                where, f"not valid UTF-8 (byte 0x{raw[exc.start]:02x} at {exc.start}); send UTF-8 text"
            ) from exc

    def size(self, element: Any) -> int:
        return len(element)

    def sample_length(self, rng: np.random.Generator) -> int:
        return 1 + round(rng.lognormal(3.8, 0.8))


class Unreadable(Exception):
    """Raised for a text that is too long to tokenize; `reading` turns it into an InputError that names the field."""


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Turn Unreadable, and a panic of the tokenizer library, into an InputError that begins with `where`.

    The panic is a BaseException, but not an Exception.
    """
    try:
        yield
    except Unreadable as exc:
        raise InputError.at(where, str(exc)) from exc
    except BaseException as exc:
        if type(exc).__name__ != "PanicException":
            raise
        raise InputError.at(where, "the model's tokenizer fails on it; send another text") from exc
