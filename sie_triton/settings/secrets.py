"""Secrets, which may be in files: a file is read again once it has changed, such as a mounted Secret of Kubernetes.

A setting keeps @FILE, so that each process reads the file itself.
"""

import logging
import os
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)


class _Content(NamedTuple):
    """Words of a file, joined by commas. `state`: inode, size in bytes and time of change in nanoseconds."""

    state: tuple[int, int, int]
    words: str


_contents: dict[str, _Content] = {}


def secret(value: str) -> str:
    """Return `value`, or for @FILE the words that FILE holds now, joined by commas.

    If FILE cannot be read any more or is empty, its last content counts. ValueError if it has never been read.
    """
    if not value.startswith("@"):
        return value
    path, last = value[1:], _contents.get(value[1:])
    try:
        _contents[path] = last = _read(path, last)
    except ValueError as exc:
        if last is None:
            raise
        log.warning("%s; its last content still counts", exc)
    return last.words


def tokens(value: str) -> tuple[str, ...]:
    """Return the tokens of a list with commas, in which each @FILE stands for those that FILE holds now."""
    found = ",".join(secret(each.strip()) for each in value.split(","))
    return tuple(token.strip() for token in found.split(",") if token.strip())


def checked(value: str) -> str:
    """Return a secret, with the absolute path if it is @FILE; ValueError if FILE cannot be read or is empty."""
    checked = f"@{Path(value[1:]).absolute()}" if value.startswith("@") else value
    secret(checked)
    return checked


def _read(path: str, last: _Content | None) -> _Content:
    """Return the content of a file, `last` if the file has not changed since."""
    try:
        found = os.stat(path)
        state = (found.st_ino, found.st_size, found.st_mtime_ns)
        if last and last.state == state:
            return last
        words = Path(path).read_text().split()
    except OSError as exc:
        raise ValueError(f"{path} cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ValueError(f"{path} cannot be read: it is not UTF-8") from exc
    if not words:
        raise ValueError(f"{path} is empty")
    return _Content(state, ",".join(words))
