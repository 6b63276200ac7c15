"""How a step knows that what it is given comes from the step before it.

Clients can reach the steps of an ensemble directly, and a length or a token id that nobody checked where it was made
could reach beyond its request. So each step seals what it hands on, and the next takes nothing else. The key is a file
in the directory of the status records, which only this server's processes can read.
"""

import os
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract import STAMPS
from sie_triton.errors import InputError
from sie_triton.stages.request import Outputs

KEY = "seal.key"
KEY_BYTES = 32

# Where the seal goes.
UNSEALED = 0

Tensors = Mapping[str, npt.NDArray[Any]]


class Seal:
    """The last entry of `stamps`: a keyed hash of the tensors beside it.

    It covers every tensor's name and shape, and the content of those that hold integers. A vector's values are left
    out: whoever forges them gets only their own forgery back. Where the steps are open (`is_open`) nothing is checked.
    """

    def __init__(self, directory: Path, *, is_open: bool = False) -> None:
        self._key = shared_key(directory)
        self._is_open = is_open

    def put(self, outputs: Tensors, beside: Tensors | None = None) -> Outputs:
        """`outputs`, sealed together with what another step handed on `beside` them."""
        stamps = outputs[STAMPS.name].copy()
        stamps[-1] = self._of({**outputs, **(beside or {})})
        return {**outputs, STAMPS.name: stamps}

    def check(self, tensors: Tensors) -> None:
        """InputError unless the step before has sealed just these."""
        if not self._is_open and int(tensors[STAMPS.name][-1]) != self._of(tensors):
            raise InputError(
                "stamps: this step takes only what the step before it sends; call the model itself, "
                "or start the server with SIE_OPEN_STEPS=true to measure a step alone"
            )

    def _of(self, tensors: Tensors) -> int:
        digest = blake2b(key=self._key, digest_size=8)
        for name in sorted(tensors):
            array = tensors[name] if name != STAMPS.name else tensors[name][:-1]
            digest.update(f"{name}{array.shape}".encode())
            if np.issubdtype(array.dtype, np.integer):
                digest.update(np.ascontiguousarray(array).data)
        return int.from_bytes(digest.digest(), "little", signed=True)


def shared_key(directory: Path) -> bytes:
    """The same for all processes that use `directory`; made by the first of them."""
    path = directory / KEY
    with suppress(FileExistsError), tempfile.NamedTemporaryFile(dir=directory) as file:  # 0600
        file.write(secrets.token_bytes(KEY_BYTES))
        file.flush()
        if not path.exists():
            os.link(file.name, path)
    return path.read_bytes()
