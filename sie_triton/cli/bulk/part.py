"""Files that an interrupted run leaves, and that the same command continues.

Records are appended to FILE.part in chunks. Each chunk is synced to the disk before the next is written. FILE.part.json
holds the run that the records belong to. The number of records is the position in the input, so nothing else records
progress, and the process or the machine may stop at any moment. The next run drops the last records, as many as a chunk
may have, because they may be incomplete, and makes them again. At the end FILE.part is renamed to FILE, which is
therefore always complete.
"""

import fcntl
import os
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import orjson
from numpy.lib import format as npy

from sie_triton.cli.bulk.lines import InputLine
from sie_triton.cli.bulk.records import ERROR_PREFIX, Record, Sink, is_error, to_json
from sie_triton.client.calls import PIECE_ITEMS
from sie_triton.errors import InputError, SIEError

AGAIN = "--overwrite starts anew"

# A run: what its output depends on, by name. None as input: it cannot be read again.
Run = Mapping[str, Any]


class PartFile(Sink):
    """FILE.part, locked by this process, and the run that its records belong to.

    After a failure its last `num_doubtful` records, those of one chunk, may be incomplete or wrong.
    """

    num_doubtful = PIECE_ITEMS

    def __init__(self, path: Path, run: Run, *, overwrite: bool) -> None:
        """Open the part of `path`, new or that of the same run. Raise InputError if it is another run's."""
        self._path, self._is_finished = path, False
        self._part, self._state = (Path(f"{path}{suffix}") for suffix in (".part", ".part.json"))
        if path.exists() and not overwrite and not self._part.exists():
            raise InputError(f"--output: {path} exists; {AGAIN}")
        with _explained(self._part):
            self._file = _locked(self._part)
        try:
            with _explained(self._part):
                self._open(run, overwrite)
        except BaseException:
            self._file.close()
            raise

    def _open(self, run: Run, overwrite: bool) -> None:
        if overwrite:
            self._file.truncate(0)
        if os.fstat(self._file.fileno()).st_size:
            check_same(self._path, self._state, run)
            self._file.truncate(self._recover())
        else:
            _replace(self._state, orjson.dumps(run, option=orjson.OPT_INDENT_2))
        self._file.seek(0, os.SEEK_END)

    def _write(self, lines: Sequence[InputLine], records: Sequence[Record]) -> None:
        with _explained(self._part):
            self._file.write(self._encoded(lines, records))
            self._file.flush()
            os.fdatasync(self._file.fileno())

    def finish(self) -> None:
        """Turn FILE.part into FILE."""
        with _explained(self._path):
            self._complete()
            self._is_finished = True
            self._state.unlink(missing_ok=True)

    def close(self) -> None:
        """Give up the lock. Remove the part if it has no record."""
        if not self._is_finished and not os.fstat(self._file.fileno()).st_size:
            self._part.unlink(missing_ok=True)
            self._state.unlink(missing_ok=True)
        with suppress(OSError):  # what cannot be written has been reported
            self._file.close()

    @abstractmethod
    def _recover(self) -> int:
        """Count the records of the part that are certain, and return the position after the last one."""

    @abstractmethod
    def _encoded(self, lines: Sequence[InputLine], records: Sequence[Record]) -> bytes: ...

    def _complete(self) -> None:
        os.fsync(self._file.fileno())
        self._part.replace(self._path)


class JsonPart(PartFile):
    """Part with a line of JSON for each record."""

    def _recover(self) -> int:
        # Position after a line, number of lines up to it, and of errors among them.
        places = deque([(0, 0, 0)], maxlen=self.num_doubtful + 1)
        self._file.seek(0)
        for line in self._file:
            if line.endswith(b"\n"):
                end, num_lines, num_errors = places[-1]
                places.append((end + len(line), num_lines + 1, num_errors + line.startswith(ERROR_PREFIX)))
        end, self.num_skipped, self.num_errors = places[0]
        return end

    def _encoded(self, lines: Sequence[InputLine], records: Sequence[Record]) -> bytes:
        return b"".join(map(to_json, records))


class RankedPart(JsonPart):
    """Scores, to which the ranks over all lines are added when the last one is there."""

    def _complete(self) -> None:
        whole = Path(f"{self._path}.part.whole")
        with whole.open("wb") as file:
            file.writelines(map(to_json, ranked(self._file)))
            file.flush()
            os.fsync(file.fileno())
        whole.replace(self._path)
        self._part.unlink()


def ranked(file: BinaryIO) -> Iterator[Record]:
    """Yield the records of a file of JSON lines with their ranks by score, 0 for the highest; errors have none.

    Only the scores are in memory, 8 bytes each.
    """
    file.seek(0)
    scores = np.fromiter((orjson.loads(line).get("score", np.nan) for line in file), np.float64)
    ranks = np.empty(len(scores), np.int64)
    ranks[np.argsort(-scores, kind="stable")] = np.arange(len(scores))
    file.seek(0)
    for line, rank in zip(file, ranks.tolist(), strict=True):
        record = orjson.loads(line)
        yield record if is_error(record) else {**record, "rank": rank}


class NpyPart(PartFile):
    """Rows of one output type behind the header of an array without rows, which `finish` replaces.

    NumPy pads a header so that the number of rows can grow in place; so no second copy of the rows is needed, and the
    number of lines need not be known beforehand.
    """

    def __init__(self, path: Path, run: Run, output_type: str, *, overwrite: bool) -> None:
        self._output_type, self._num_new = output_type, 0
        self._row: npt.NDArray[Any] | None = None
        super().__init__(path, run, overwrite=overwrite)

    def _recover(self) -> int:
        self._file.seek(0)
        try:
            npy.read_magic(self._file)  # type: ignore[no-untyped-call]
            shape, _, dtype = npy.read_array_header_1_0(self._file)  # type: ignore[no-untyped-call]
        except ValueError:  # not even the header was written
            return 0
        self._row = np.empty(shape[1:], dtype)
        start, end = self._file.tell(), self._file.seek(0, os.SEEK_END)
        self.num_skipped = max(0, (end - start) // max(1, self._row.nbytes) - self.num_doubtful)
        return start + self.num_skipped * self._row.nbytes

    def _encoded(self, lines: Sequence[InputLine], records: Sequence[Record]) -> bytes:
        self._num_new += len(lines)
        return b"".join(map(self._checked, lines, records))

    def _checked(self, line: InputLine, record: Record) -> bytes:
        """Return the bytes of a row, after the header if it is the first. Raise InputError if it has another shape."""
        row, header = record.get(self._output_type), b""
        if not isinstance(row, np.ndarray):
            raise InputError(
                f"line {line.number}: has no {self._output_type} of its own for a row; give --format jsonl"
            )
        if self._row is None:
            self._row = row
            header = npy_header(0, row)
        if (row.shape, row.dtype) != (self._row.shape, self._row.dtype):
            raise InputError(
                f"line {line.number}: {self._output_type} is {row.dtype} {list(row.shape)}, but the rows before it are "
                f"{self._row.dtype} {list(self._row.shape)}; {AGAIN}"
            )
        return header + row.tobytes()

    def _complete(self) -> None:
        self._file.seek(0)
        row = np.empty(0, np.float32) if self._row is None else self._row
        self._file.write(npy_header(self.num_skipped + self._num_new, row))
        self._file.flush()
        super()._complete()


def npy_header(num_rows: int, row: npt.NDArray[Any]) -> bytes:
    """Return the header of an array of rows like `row`; its size does not depend on their number."""
    written = BytesIO()
    about = {"descr": row.dtype.str, "fortran_order": False, "shape": (num_rows, *row.shape)}
    npy.write_array_header_1_0(written, about)  # type: ignore[no-untyped-call]
    return written.getvalue()


def check_same(path: Path, state: Path, run: Run) -> None:
    """Raise InputError unless the run in the file `state` is `run`, and its input can be read again."""
    try:
        before = orjson.loads(state.read_bytes())
    except (OSError, ValueError) as exc:
        raise InputError(f"--output: {path}.part is of another run, without {state}; {AGAIN}") from exc
    now = orjson.loads(orjson.dumps(run))
    differences = [difference(name, before.get(name), now.get(name)) for name in {**before, **now}]
    if any(differences):
        told = "; ".join(filter(None, differences))
        raise InputError(f"--output: {path}.part is of another run: {told}; {AGAIN}")
    if now["input"] is None:
        raise InputError(
            f"--output: {path}.part is of an interrupted run, but a pipe cannot be read again; give --input "
            f"FILE to runs that shall be continued; {AGAIN}"
        )


def difference(name: str, before: Any, now: Any) -> str:
    """Describe how a value differs from that of the run before; empty if it does not.

    >>> difference("parameters", {"is_query": True, "lora": "a"}, {"lora": "b"})
    'parameters.is_query was true, now absent; parameters.lora was "a", now "b"'
    """
    if before == now:
        return ""
    if isinstance(before, dict) and isinstance(now, dict):
        members = (difference(f"{name}.{key}", before.get(key), now.get(key)) for key in {**before, **now})
        return "; ".join(filter(None, members))
    was, is_now = ("absent" if value is None else orjson.dumps(value).decode() for value in (before, now))
    return f"{name} was {was}, now {is_now}"


def _locked(path: Path) -> BinaryIO:
    """Open a file, which need not exist, for reading and writing, and lock it until it is closed."""
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_current = path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())
    except BlockingIOError:
        is_current = False
    if not is_current:  # a run that has just ended renamed it
        file.close()
        raise InputError(f"--output: another run writes {path}; wait until it ends")
    return file


def _replace(path: Path, content: bytes) -> None:
    """Write a file so that it is never there in part."""
    written = Path(f"{path}.new")
    with written.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise SIEError(f"{path}: cannot be written ({exc.strerror or exc})") from exc
