"""The generated bearer token of load, evict and changes, in a file that only the server's user can read."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

from sie_triton.settings.secrets import tokens

TOKEN_FILE = "admin-token"  # noqa: S105


def admin_token(data_dir: Path, given: str) -> str:
    """Return `given` if set, else a new token in a file, where `find_token` reads it."""
    path = data_dir / TOKEN_FILE
    path.unlink(missing_ok=True)
    if given:
        return given
    data_dir.mkdir(parents=True, exist_ok=True)
    made = secrets.token_urlsafe(24)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(made)
    return made


def find_token(data_dir: Path, given: str) -> str:
    """Return the first token of `given`, else that of the server with this data directory; empty if there is none."""
    with suppress(OSError, UnicodeDecodeError):
        return next(iter(tokens(given)), "") or (data_dir / TOKEN_FILE).read_text()
    return ""
