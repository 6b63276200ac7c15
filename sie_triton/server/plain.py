"""Paths that Triton's Python backend can use: it puts them unquoted into the command line of a shell."""

import re
import shutil
import tempfile
from pathlib import Path

PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)


class PlainPaths:
    """The paths themselves where they are plain, else links to them in a directory that only this user can read."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._links: dict[Path, Path] = {}

    def of(self, path: Path) -> Path:
        if PLAIN.fullmatch(str(path)):
            return path
        if path not in self._links:
            link = self._made() / f"{len(self._links)}"
            link.symlink_to(path)
            self._links[path] = link
        return self._links[path]

    def remove(self) -> None:
        """The links, not what they lead to."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
        self._directory, self._links = None, {}

    def _made(self) -> Path:
        if self._directory is None:
            usual = PLAIN.fullmatch(tempfile.gettempdir())
            self._directory = Path(tempfile.mkdtemp(prefix="sie-triton-", dir=None if usual else "/tmp"))
        return self._directory
