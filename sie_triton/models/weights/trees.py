"""Directories of links to a model's files, some of which are replaced."""

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import sleep
from typing import IO, Any

from sie_triton.checkpoints.files import first_line
from sie_triton.errors import LoadError
from sie_triton.models.weights.limits import LIMITS
from sie_triton.system.host.private import private_directory


def completed(content: Mapping[str, Path | str], cache: Path) -> Path:
    """Return a directory below `cache` with this content, which maps names to files or directories, or to texts.

    It is named by a hash of the content, and never changes.
    """
    try:
        target = private_directory(private_directory(cache) / "models") / hashed(content)
        if not target.is_dir():
            with made(target) as directory:
                fill(directory, content)
    except OSError as exc:
        raise LoadError(f"{cache}: cannot store the model's files: {first_line(exc)}", "failed") from exc
    return target


def hashed(content: Mapping[str, object]) -> str:
    """Return a hash that names a directory with this content."""
    # Paths may have bytes that are no text in this process's locale.
    return hashlib.sha256(repr(sorted(content.items())).encode(errors="surrogateescape")).hexdigest()[:32]


@contextmanager
def made(target: Path) -> Iterator[Path]:
    """Yield a new directory, which becomes `target` at the end unless another process was first."""
    fresh = Path(tempfile.mkdtemp(dir=target.parent, prefix="."))
    try:
        yield fresh
        fresh.rename(target)
    except BaseException as exc:
        shutil.rmtree(fresh, ignore_errors=True)
        if not (isinstance(exc, OSError) and target.is_dir()):
            raise


def fill(directory: Path, content: Mapping[str, Path | str]) -> None:
    """Make links, and files for texts."""
    for name, source in content.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(source, str):
            (directory / name).write_text(source)
        else:
            (directory / name).symlink_to(source.absolute())


@contextmanager
def locked(path: Path, waiting: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of the file `path`; `waiting` as below."""
    with path.open("a") as file:
        lock(file, waiting)
        yield


def lock(file: IO[Any], waiting: Callable[[], object]) -> None:
    """Lock an open file until it is closed; `waiting` is called until it is free, and may raise to stop."""
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            sleep(LIMITS.poll_s)
