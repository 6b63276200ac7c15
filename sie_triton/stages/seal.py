"""How a step knows that what it is given comes from the step before it.

Clients can reach the steps of an ensemble directly. So each step seals what it hands on, and the next takes nothing
else. The key is a file in the directory of the status records, which only this server's processes can read.
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
    """A keyed hash in front of a text, of it and of how much each tensor beside it holds.

    What the tensors hold is validated by the step that takes them; hashing it too would cost several times as much.
    Where the steps are open (`is_open`) nothing is checked.

    Holds the key of this server's processes and nothing that changes, so any thread may call both methods. Making a
    seal raises OSError where the key's directory cannot be used.
    """

    def __init__(self, directory: Path, *, is_open: bool = False) -> None:
        self._key = shared_key(directory)
        self.is_open = is_open

    def sealed(self, text: bytes, tensors: Tensors) -> npt.NDArray[np.uint8]:
        """uint8 [SEAL_BYTES + len(text)]. Both steps give `tensors` in the same order."""
        return np.frombuffer(self._of(text, tensors) + text, np.uint8)

    def opened(self, context: npt.NDArray[np.uint8], tensors: Tensors) -> bytes:
        """The text; InputError unless the step before has sealed it beside tensors of these sizes."""
        found = context.tobytes()
        seal, text = found[:SEAL_BYTES], found[SEAL_BYTES:]
        if not self.is_open and not secrets.compare_digest(seal, self._of(text, tensors)):
            raise InputError(
                "context: this step takes only what the step before it sends; call the model itself, "
                "or start the server with SIE_OPEN_STEPS=true to measure a step alone"
            )
        return text

    def _of(self, text: bytes, tensors: Tensors) -> bytes:
        sizes = array("q", [tensor.size for tensor in tensors])
        return blake2b(text + sizes.tobytes(), key=self._key, digest_size=SEAL_BYTES).digest()


def shared_key(directory: Path) -> bytes:
    """The same for all processes that use `directory`; made by the first of them."""
    path = directory / KEY
    with suppress(FileExistsError), tempfile.NamedTemporaryFile(dir=directory) as file:  # 0600
        file.write(secrets.token_bytes(KEY_BYTES))
        file.flush()
        if not path.exists():
            os.link(file.name, path)
    return path.read_bytes()
