"""Seals prove to a step that its input comes from the previous step.

Clients can reach the steps of an ensemble directly. Therefore each step seals its output, and the next step accepts
nothing else. The key is a file in the directory of the status records, which only this server's processes can read.
"""

import os
import secrets
import tempfile
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

KEY = "seal.key"
SEAL_BYTES = 8


class Seal:
    """A keyed hash of bytes and of the step that sends them. Immutable, so any thread may call its methods.

    The constructor raises OSError if the key's directory cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        self._key = shared_key(directory)

    def of(self, covered: bytes | memoryview, sender: bytes) -> bytes:
        """Return the seal, SEAL_BYTES long. `sender`: name of the step, up to 16 bytes."""
        return blake2b(covered, key=self._key, digest_size=SEAL_BYTES, person=sender).digest()

    def is_of(self, seal: bytes | memoryview, covered: bytes | memoryview, sender: bytes) -> bool:
        return secrets.compare_digest(seal, self.of(covered, sender))


def shared_key(directory: Path) -> bytes:
    """Return the key of all processes that use `directory`; the first of them creates it."""
    path = directory / KEY
    with suppress(FileExistsError), tempfile.NamedTemporaryFile(dir=directory) as file:  # 0600
        file.write(secrets.token_bytes(32))
        file.flush()
        if not path.exists():
            os.link(file.name, path)
    return path.read_bytes()
