"""A path that Triton's Python backend can use.

The backend puts paths unquoted into a shell command, its stubs accept only ASCII, and a colon separates libraries that
a program loads first.
"""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ASCII = re.compile(r"[\w@%+=,./-]+", re.ASCII)


@contextmanager
def ascii_path(path: Path) -> Iterator[Path]:
    """Yield `path` itself if it is plain, else a link to it that only this user can reach."""
    if ASCII.fullmatch(str(path)):
        yield path
        return
    usual = ASCII.fullmatch(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix="sie-triton-", dir=None if usual else "/tmp") as directory:
        link = Path(directory) / "data"
        link.symlink_to(path)
        yield link
