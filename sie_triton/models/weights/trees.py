"""Directories of links to a model's files, some of which are replaced."""

import fcntl
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import sleep

from sie_triton.checkpoints.files import first_line
from sie_triton.errors import LoadError
from sie_triton.models.weights.conversions import MODELS
from sie_triton.models.weights.limits import LIMITS
from sie_triton.system.host.private import private_directory


def completed(content: Mapping[str, Path | str], cache: Path) -> Path:
    """Return a directory below `cache` with this content, which maps names to files or directories, or to texts."""
    try:
        return tree_of(content, private_directory(private_directory(cache) / MODELS))
    except OSError as exc:
        raise LoadError(f"{cache}: cannot store the model's files: {first_line(exc)}", "failed") from exc


def tree_of(content: Mapping[str, Path | str], home: Path) -> Path:
    """Return a directory of links, and of files for texts, named by a hash of `content`: it never changes."""
    facts = repr(sorted(content.items(), key=lambda item: item[0]))
    # Paths may have bytes that are no text in this process's locale.
    key = hashlib.sha256(facts.encode(errors="surrogateescape")).hexdigest()[:32]
    target = home / key
    if target.is_dir():
        return target
    fresh = Path(tempfile.mkdtemp(dir=home, prefix="."))
    try:
        for name, source in content.items():
            (fresh / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(source, str):
                (fresh / name).write_text(source)
            else:
                (fresh / name).symlink_to(source.absolute())
        fresh.rename(target)
    except BaseException as exc:
        shutil.rmtree(fresh, ignore_errors=True)
        # Another process was first.
        if not (isinstance(exc, OSError) and target.is_dir()):
            raise
    return target


@contextmanager
def locked(path: Path, waiting: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of the file `path`; `waiting` is called until it is free, and may raise to stop."""
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waiting()
                sleep(LIMITS.poll_s)
        yield
