"""Limits of the system that this process has reached."""

import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from sie_triton.system.host import container


@contextmanager
def _limited(kind: int, limit: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def no_file_handle_left() -> AbstractContextManager[None]:
    """Return a context within which this process can open no file."""
    return _limited(resource.RLIMIT_NOFILE, 3)


def full_disk() -> AbstractContextManager[None]:
    """Return a context within which this process can make files, and write to none."""
    return _limited(resource.RLIMIT_FSIZE, 0)


def cgroups(monkeypatch: pytest.MonkeyPatch, root: Path, own: str = "0::/") -> None:
    """Pretend that `root` holds the cgroups of this machine; `own` are the lines about this process."""
    (root / "own").write_text(f"{own}\n")
    monkeypatch.setattr(container, "CGROUPS", root)
    monkeypatch.setattr(container, "OWN", root / "own")
