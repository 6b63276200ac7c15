"""Files that other processes read while they change."""

import os
from contextlib import suppress
from pathlib import Path
from threading import get_ident


def write_atomically(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Replace a file: its readers see the old content or the new one. OSError, and the old one, if that fails."""
    data = content.encode() if isinstance(content, str) else content
    fresh = path.with_name(f".{os.getpid()}.{get_ident()}.new")
    try:
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.write(data)
        fresh.replace(path)
    except OSError:
        with suppress(OSError):
            fresh.unlink()
        raise
