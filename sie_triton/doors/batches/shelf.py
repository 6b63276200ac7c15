"""Files and batches of one token: a folder of the data directory, which all processes of the door read and write.

`file-ID` is the content of a file, and `file-ID.json`, written last, what its owner sees of it. `batch_ID.open` is a
batch whose run has not ended, `batch_ID.json` one whose run has, and `batch_ID.cancel` the wish that it end. Ids begin
with the time, so their order is that of creation.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from time import time, time_ns
from typing import Any, BinaryIO, TypeVar

import orjson

from sie_triton.doors.failures import Failure, invalid
from sie_triton.doors.limits import BatchLimits
from sie_triton.system.host.files import write_atomically

Record = dict[str, Any]

Result = TypeVar("Result")

ID = re.compile(r"(file-|batch_)[0-9a-f]{32}")

# Name of a folder without tokens.
WITHOUT_TOKEN = "all"  # noqa: S105, no password


def new_id(prefix: str) -> str:
    """Return a random id, whose order is that of time.

    >>> bool(ID.fullmatch(new_id("file-"))), new_id("batch_") < new_id("batch_")
    (True, True)
    """
    return f"{prefix}{time_ns():016x}{token_hex(8)}"


def now() -> int:
    return int(time())


async def to_its_end(act: Callable[..., Result], *given: Any) -> Result:
    """Call `act` on a thread; a cancellation waits for its end, so that nobody else writes meanwhile."""
    acting = asyncio.ensure_future(asyncio.to_thread(act, *given))
    cancelled: asyncio.CancelledError | None = None
    while not acting.done():
        try:
            await asyncio.wait([acting])
        except asyncio.CancelledError as exc:  # there may be several
            cancelled = exc
    result = acting.result()
    if cancelled is not None:
        raise cancelled
    return result


class Shelf:
    """Folder of one token. The methods block; Failure if a client names what is not there, OSError if the disk fails.

    `max_bytes` limits the files of this token.
    """

    def __init__(self, directory: Path, max_bytes: int, limits: BatchLimits) -> None:
        self.directory, self._max_bytes, self.limits = directory, max_bytes, limits

    def path(self, id: str) -> Path:
        """Return the path of a file's content."""
        return self.directory / id

    def read(self, id: str, field: str, prefix: str) -> Record:
        """Return a file or a batch by its id; Failure names `field` if there is none."""
        if id.startswith(prefix) and ID.fullmatch(id):
            for suffix in (".json", ".open", ".json"):  # a run may end between the first two
                with suppress(FileNotFoundError):
                    return self._record(f"{id}{suffix}")
        raise Failure("no_route", f"{field}: there is no {id[:60]!r} with this token", field=field)

    def ids(self, prefix: str) -> list[str]:
        """Return the ids of all files or batches, oldest first."""
        with suppress(FileNotFoundError):
            names = [path.stem for path in self.directory.iterdir() if path.suffix in (".json", ".open")]
            return sorted({name for name in names if name.startswith(prefix)})
        return []

    def records(self, prefix: str) -> list[Record]:
        """Return all files or batches, oldest first."""
        found = []
        for id in self.ids(prefix):
            with suppress(Failure):  # it has expired just now
                found.append(self.read(id, "", prefix))
        return found

    def open_batches(self) -> Iterator[Record]:
        """Yield the batches whose runs have not ended."""
        for path in self.directory.glob("batch_*.open"):
            with suppress(FileNotFoundError):
                if path.with_suffix(".json").exists():
                    path.unlink()  # a process ended just before
                else:
                    yield self._record(path.name)

    def outcome(self, batch: Record) -> str:
        """Return how a batch must end now: as cancelled or expired; empty if it may go on."""
        if self.path(f"{batch['id']}.cancel").exists():
            return "cancelled"
        return "expired" if batch["expires_at"] <= now() else ""

    def _in_use(self) -> dict[str, str]:
        """Return the batches that have not ended by the ids of their files."""
        kinds = ("input_file_id", "output_id", "error_id")
        return {batch[kind]: batch["id"] for batch in self.open_batches() for kind in kinds}

    def create(self, id: str) -> BinaryIO:
        """Open the content of a new file; Failure if there are too many files, or no room.

        Uploads in progress count as files, so that no number of them passes the limit together.
        """
        self.check_bytes(0)
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path(id), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        contents = [path for path in self.directory.iterdir() if path.name.startswith("file-") and not path.suffix]
        if len(contents) > self.limits.num_files:
            os.close(descriptor)
            self.path(id).unlink()
            raise Failure("too_large", f"file: there are {self.limits.num_files} files; delete some", field="file")
        return open(descriptor, "wb")

    def check_bytes(self, num_more: int) -> None:
        """Raise Failure if all that is here would have too many bytes, with `num_more` of them."""
        used = num_more
        for path in self.directory.iterdir() if self.directory.is_dir() else ():
            with suppress(FileNotFoundError):
                used += path.stat().st_size
        if used > self._max_bytes:
            message = f"file: all files would have more than {self._max_bytes} bytes; delete some, or raise "
            raise Failure("too_large", message + "SIE_DOOR_MAX_FILE_BYTES", field="file")

    def add_file(self, id: str, name: str, purpose: str) -> Record:
        """Make the content at `path(id)` a file."""
        created_at = now()
        record = {
            "id": id,
            "object": "file",
            "bytes": self.path(id).stat().st_size,
            "created_at": created_at,
            "expires_at": created_at + self.limits.lifetime_s,
            "filename": name,
            "purpose": purpose,
            "status": "processed",
        }
        self.write(f"{id}.json", record)
        return record

    def delete_file(self, id: str) -> None:
        """Delete a file; Failure if there is none, or if a batch reads it."""
        self.read(id, "file_id", "file-")
        if user := self._in_use().get(id):
            raise invalid("file_id", f"{id} belongs to {user}, which has not ended; cancel it first")
        self.path(f"{id}.json").unlink(missing_ok=True)
        self.path(id).unlink(missing_ok=True)

    def add_batch(self, batch: Record) -> None:
        """Open a batch, of which the oldest one makes room; Failure if that has not ended."""
        ids = self.ids("batch_")
        num_over = max(0, len(ids) + 1 - self.limits.num_batches)  # several, if some were opened at the same time
        for id in ids[:num_over]:
            if self.path(f"{id}.open").exists():
                raise Failure("busy", f"{len(ids)} batches have been created, the first still runs", retry_after_s=60)
            self.path(f"{id}.json").unlink(missing_ok=True)
        self.write(f"{batch['id']}.open", batch)

    def end_batch(self, batch: Record) -> None:
        """Record that the run of a batch has ended."""
        self.write(f"{batch['id']}.json", batch)
        for suffix in (".open", ".cancel"):
            self.path(batch["id"] + suffix).unlink(missing_ok=True)

    def write(self, name: str, record: Mapping[str, Any]) -> None:
        write_atomically(self.path(name), orjson.dumps(record), 0o600)

    def sweep(self) -> None:
        """Remove files and batches that have expired, and content that a process has left without a record."""
        in_use = self._in_use()
        for path in [*self.directory.iterdir()] if self.directory.is_dir() else ():
            with suppress(FileNotFoundError):
                if path.suffix == ".cancel" and not path.with_suffix(".open").exists():
                    path.unlink()
                elif path.suffix == ".json" and path.stem not in in_use and self._is_over(self._record(path.name)):
                    path.unlink()
                    path.with_suffix("").unlink(missing_ok=True)
                is_abandoned = path.stat().st_mtime < time() - self.limits.abandoned_s and path.name not in in_use
                if path.suffix in ("", ".new") and is_abandoned and not self.path(f"{path.name}.json").exists():
                    path.unlink()

    def _is_over(self, record: Record) -> bool:
        if record["object"] == "file":
            return bool(record["expires_at"] <= now())
        return bool(record["created_at"] + self.limits.lifetime_s <= now())

    def _record(self, name: str) -> Record:
        try:
            found: Record = orjson.loads(self.path(name).read_bytes())
        except orjson.JSONDecodeError as exc:  # the machine lost its power
            self.path(name).unlink(missing_ok=True)
            raise FileNotFoundError(name) from exc
        return found
