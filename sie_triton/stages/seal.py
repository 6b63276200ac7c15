"""Seals prove to a step that its input comes from the previous step.

Clients can reach the steps of an ensemble directly. Therefore each step seals its output, and the next step accepts
nothing else. The key is a file in the directory of the status records, which only this server's processes can read.
"""

import os
import secrets
import tempfile
from array import array
from collections.abc import Iterable
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.errors import InputError

KEY = "seal.key"
KEY_BYTES = 32
SEAL_BYTES = 8

Tensors = Iterable[npt.NDArray[Any]]


class Seal:
    """A keyed hash of a text and of the sizes of the tensors sent with it; it precedes the text.

    The receiving step validates the contents of the tensors; hashing them too would cost several times as much. If the
    steps are open (`is_open`), the seal is not checked.

    A seal is immutable, so any thread may call its methods. The constructor raises OSError if the key's directory
    cannot be used.
    """

    def __init__(self, directory: Path, *, is_open: bool = False) -> None:
        self._key = shared_key(directory)
        self.is_open = is_open

    def sealed(self, text: bytes, tensors: Tensors) -> npt.NDArray[np.uint8]:
        """Return the sealed text, uint8 [SEAL_BYTES + len(text)]. Both steps must pass `tensors` in the same order."""
        return np.frombuffer(self._digest(text, tensors) + text, np.uint8)

    def opened(self, context: npt.NDArray[np.uint8], tensors: Tensors) -> bytes:
        """Return the text. Raise InputError unless the previous step sealed it with tensors of these sizes."""
        found = context.tobytes()
        seal, text = found[:SEAL_BYTES], found[SEAL_BYTES:]
        if not self.is_open and not secrets.compare_digest(seal, self._digest(text, tensors)):
            raise InputError.at(
                "context",
                "this step accepts only the output of the previous step; call the model itself, "
                "or start the server with SIE_OPEN_STEPS=true to measure a step alone",
            )
        return text

    def _digest(self, text: bytes, tensors: Tensors) -> bytes:
        sizes = array("q", [tensor.size for tensor in tensors])
        return blake2b(text + sizes.tobytes(), key=self._key, digest_size=SEAL_BYTES).digest()


def shared_key(directory: Path) -> bytes:
    """Return the key of all processes that use `directory`; the first of them creates it."""
    path = directory / KEY
    with suppress(FileExistsError), tempfile.NamedTemporaryFile(dir=directory) as file:  # 0600
        file.write(secrets.token_bytes(KEY_BYTES))
        file.flush()
        if not path.exists():
            os.link(file.name, path)
    return path.read_bytes()
