"""Message of a stage that could not load its model: a text file beside its status record, which holds only the reason.

stage → `org__name-inference.failure` → controller
"""

from contextlib import suppress
from pathlib import Path

from sie_triton.system.host.files import write_atomically


def write_failure(directory: Path, steps: str, stage: str, message: str) -> None:
    """Write the first 1,000 characters of `message` on one line; do nothing if the directory is not writable."""
    with suppress(OSError):
        write_atomically(_path(directory, steps, stage), " ".join(message.split())[:1000])


def read_failure(directory: Path, steps: str, stage: str) -> str:
    """Return the latest message of a failed stage; empty if it wrote none."""
    with suppress(OSError, ValueError):
        return _path(directory, steps, stage).read_text(encoding="utf-8")[:1000]
    return ""


def _path(directory: Path, steps: str, stage: str) -> Path:
    return directory / f"{steps}-{stage}.failure"
