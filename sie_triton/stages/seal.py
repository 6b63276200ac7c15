"""How a step knows that what it is given comes from the step before it.

Clients can reach the steps of an ensemble directly. So each step seals what it hands on, and the next takes nothing
else. The key is a file in the directory of the status records, which only this server's processes can read.
"""

import os
import secrets
import tempfile
from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.errors import InputError

KEY = "seal.key"
KEY_BYTES = 32

Tensors = Iterable[npt.NDArray[Any]]


class Seal:
    """The last entry of `stamps`: a keyed hash of the other entries, and of how much each tensor beside them holds.

    What the tensors hold is validated by the step that takes them; hashing it too would cost several times as much.
    Where the steps are open (`is_open`) nothing is checked.

    Holds the key of this server's processes and nothing that changes, so any thread may call both methods. Making a
    seal raises OSError where the key's directory cannot be used.
    """

    def __init__(self, directory: Path, *, is_open: bool = False) -> None:
        self._key = shared_key(directory)
        self._is_open = is_open

    def stamps(self, stamps: Sequence[int], tensors: Tensors) -> npt.NDArray[np.int64]:
        """`stamps` with the seal behind them. Both steps give `tensors` in the same order."""
        return np.array([*stamps, self._of(stamps, tensors)], np.int64)

    def check(self, stamps: npt.NDArray[np.int64], tensors: Tensors) -> None:
        """InputError unless the step before has sealed `stamps` beside tensors of these sizes."""
        if self._is_open:
            return
        *others, seal = stamps.tolist()
        if seal != self._of(others, tensors):
            raise InputError(
                "stamps: this step takes only what the step before it sends; call the model itself, "
                "or start the server with SIE_OPEN_STEPS=true to measure a step alone"
            )

    def _of(self, stamps: Sequence[int], tensors: Tensors) -> int:
        sealed = array("q", [*stamps, *[tensor.size for tensor in tensors]])
        return int.from_bytes(blake2b(sealed, key=self._key, digest_size=8).digest(), "little", signed=True)


def shared_key(directory: Path) -> bytes:
    """The same for all processes that use `directory`; made by the first of them."""
    path = directory / KEY
    with suppress(FileExistsError), tempfile.NamedTemporaryFile(dir=directory) as file:  # 0600
        file.write(secrets.token_bytes(KEY_BYTES))
        file.flush()
        if not path.exists():
            os.link(file.name, path)
    return path.read_bytes()
