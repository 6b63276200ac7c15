"""Details of each forward pass as JSON lines, for `sie-triton top` and for whoever debugs batching.

inference → SIE_DATA_DIR/batches/org__name.jsonl → top
"""

import logging
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from json import dumps, loads
from logging.handlers import RotatingFileHandler
from os import fstat
from pathlib import Path

from sie_triton.system.telemetry.options import OPTIONS

# In the data directory.
DIRECTORY, SUFFIX = "batches", ".jsonl"


@dataclass(frozen=True, slots=True)
class BatchDetail:
    """Details of one forward pass. `at`: its end, in seconds since the epoch. `fill`: its cost by that of a full pass.

    `waited_ms`: from the end of preprocess to the start of the pass, of the request that waited longest.
    """

    at: float
    model: str
    num_items: int
    num_requests: int
    cost: int
    fill: float
    threads: int
    waited_ms: float
    duration_ms: float


class _File(RotatingFileHandler):
    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Lose a line, for example when the disk is full."""


class BatchLog:
    """Writes the file of one model, if SIE_INSTRUMENTATION is on. One thread at a time calls `add`.

    The file has at most `max_bytes`, and is kept once more when it is full.
    """

    def __init__(
        self, data_dir: Path, model: str, is_on: bool = OPTIONS.instrumentation, max_bytes: int = 4 * 1024**2
    ) -> None:
        self.is_on = is_on
        if is_on:
            path = data_dir / DIRECTORY / f"{model}{SUFFIX}"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _File(path, maxBytes=max_bytes, backupCount=1, encoding="utf-8")

    def add(self, detail: BatchDetail) -> None:
        self._file.emit(logging.makeLogRecord({"msg": dumps(asdict(detail))}))

    def close(self) -> None:
        if self.is_on:
            self._file.close()


class BatchTail:
    """Reads what is added to the files of all models."""

    def __init__(self, data_dir: Path) -> None:
        self._directory = data_dir / DIRECTORY
        self._places: dict[Path, tuple[int, int]] = {}  # number of the file, and offset
        for _ in self.read():
            pass

    def read(self) -> Iterator[BatchDetail]:
        """Yield the passes since the last call; lines that are not whole yet come with the next one."""
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            with path.open("rb") as file:
                number, (known, offset) = fstat(file.fileno()).st_ino, self._places.get(path, (0, 0))
                if number != known:  # the first file, or the next one after a full one
                    offset = 0
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    offset += len(line)
                    yield BatchDetail(**loads(line))
                self._places[path] = number, offset
