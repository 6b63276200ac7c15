"""Single files of models: headers of weights, and SentencePiece's models."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from sie_triton.checkpoints.contents import LENGTH_BYTES, check_safetensors, converted_bytes
from sie_triton.checkpoints.sentencepiece import SentencePiece
from sie_triton.errors import LoadError
from tests.fuzz.damage import damaged
from tests.fuzz.target import Target
from tests.fuzz.trees import changed, to_json


@contextmanager
def safetensors(directory: Path) -> Iterator[Target]:
    """Yield the target of headers of weights alone."""
    tensor = {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}
    headers = [
        {"a": tensor},
        {"__metadata__": {"format": "pt"}, "a": tensor, "b": {**tensor, "data_offsets": [36, 72]}},
    ]
    files = [with_header(header, bytes(72)) for header in headers]
    cases = st.one_of(changed(headers).map(lambda header: with_header(header, bytes(72))), damaged(files))
    path = directory / "model.safetensors"

    def run(file: bytes) -> None:
        path.write_bytes(file)
        assert 0 <= converted_bytes(path, 2) <= 2 * len(file)
        check_safetensors(path)

    yield Target(cases, run, (LoadError,))


@contextmanager
def sentencepiece(directory: Path) -> Iterator[Target]:
    """Yield the target of SentencePiece's models."""
    piece = b"\x0a\x0c\x0a\x03\xe2\x96\x81\x15\x00\x00\x80\xbf\x18\x01"
    pieces = [b"\x0a\x09\x0a\x05<unk>\x18\x02", piece, b"\x0a\x07\x0a\x03<s>\x18\x03"]
    files = [b"".join([*pieces, piece * 3, b"\x12\x05\x18\x01\xc0\x02\x00", b"\x1a\x06\x12\x04\0\0\0\0"])]
    path = directory / "spm.model"

    def run(file: bytes) -> None:
        path.write_bytes(file)
        found = SentencePiece.read(path)
        assert 0 <= found.unknown < len(found.pieces)

    yield Target(damaged(files), run, (LoadError,))


def with_header(header: Any, data: bytes) -> bytes:
    """Return a file of safetensors."""
    text = to_json(header)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text + data
