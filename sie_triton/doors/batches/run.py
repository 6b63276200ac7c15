"""Run of one batch: lines of its file → requests to the route's handler → lines of the output and the error file.

The answers are written in the order of the lines, a window of lines at a time, and then the place after them, from
which another process goes on.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import NamedTuple

import orjson
from starlette.responses import Response
from starlette.routing import Route

from sie_triton.doors.backend import bulk, forwarded, tenant
from sie_triton.doors.batches.lines import BatchLine, LineError, Raw, check_lines, raw_lines, read_line
from sie_triton.doors.batches.shelf import WITHOUT_TOKEN, Record, Shelf, now, to_its_end
from sie_triton.doors.endpoint import (
    COPIES,
    MAX_TIMEOUT_S,
    TIMEOUT_HEADER,
    Door,
    DoorEndpoint,
    DoorRequest,
    failure_response,
)
from sie_triton.doors.failures import Failure
from sie_triton.system.telemetry.identity import REQUEST_ID

log = logging.getLogger(__name__)

# Codes of failures that time heals: the request is tried again until the batch expires.
BUSY = ("QUEUE_FULL", "RESOURCE_EXHAUSTED", "MODEL_LOADING", "LORA_LOADING")


Asked = tuple[Raw, BatchLine]


class Result(NamedTuple):
    """Line of the output file, or of the error file."""

    line: bytes
    is_error: bool


class BatchRun:
    """Belongs to the event loop of `door`. `run` ends the batch, unless it is cancelled: then another one goes on."""

    def __init__(self, door: Door, shelf: Shelf, id: str) -> None:
        self.id, self.shelf = id, shelf
        self._door, self._limits = door, door.limits.batch
        self._batch: Record = {}
        self._work: asyncio.Task[Sequence[Record]] | None = None
        self._outcome = "completed"

    async def look(self) -> None:
        """Stop if the owner wishes so, or the time is over."""
        if self._work is None:
            return
        outcome = await asyncio.to_thread(self.shelf.outcome, self._batch)
        if outcome and not self._work.done() and self._outcome == "completed":
            self._outcome = outcome
            self._work.cancel()

    async def run(self) -> None:
        self._batch = await asyncio.to_thread(self.shelf.read, self.id, "batch_id", "batch_")
        self._outcome = await asyncio.to_thread(self.shelf.outcome, self._batch) or "completed"
        errors: Sequence[Record] = ()
        try:
            if self._outcome == "completed":
                self._work = asyncio.create_task(self._worked())
                errors = await self._work
        except asyncio.CancelledError:
            if self._outcome == "completed":
                raise
        except LineError as exc:
            errors = [exc.record(None)]
        except (OSError, Failure) as exc:
            problem = exc.message if isinstance(exc, Failure) else f"the data directory fails: {exc.strerror}"
            errors = [LineError("storage", f"{problem}; the results so far are kept").record(None)]
        except Exception as exc:
            log.exception("batch %s failed", self.id)
            errors = [LineError("internal_error", f"{type(exc).__name__}; see the door's log").record(None)]
        await to_its_end(self._end, "failed" if errors else self._outcome, errors)

    async def _worked(self) -> Sequence[Record]:
        """Answer the requests that are left; return errors of the file, if there are any."""
        batch, path = self._batch, self.shelf.path(self._batch["input_file_id"])
        if batch["status"] == "validating":
            total, errors = await asyncio.to_thread(check_lines, path, batch["endpoint"], self._limits)
            if errors:
                return errors
            batch |= {"status": "in_progress", "in_progress_at": now()}
            batch["request_counts"]["total"] = total
            await to_its_end(self._save)
        windows: deque[tuple[Raw, asyncio.Task[list[Result]]]] = deque()
        lines = self._lines()
        try:
            while window := await asyncio.to_thread(self._window, lines):
                windows.append((window[-1][0], asyncio.create_task(self._answered(window))))
                if len(windows) >= self._limits.num_windows:
                    await self._write_next(windows)
            while windows:
                await self._write_next(windows)
        finally:
            for _, task in windows:
                task.cancel()
        return ()

    def _lines(self) -> Iterator[Asked]:
        """Yield the lines after the batch's place."""
        batch, place = self._batch, self._batch["place"]
        with self.shelf.path(batch["input_file_id"]).open("rb") as file:
            file.seek(place["input"])
            for raw in raw_lines(file, self._limits.line_bytes, place["line"]):
                yield raw, read_line(raw.content, batch["endpoint"], self._limits)

    def _window(self, lines: Iterator[Asked]) -> list[Asked]:
        """Return the next lines that run at the same time, none at the end. One may be larger than a window."""
        window: list[Asked] = []
        num_items = num_bytes = 0
        for raw, line in lines:
            window.append((raw, line))
            num_items, num_bytes = num_items + line.num_items, num_bytes + len(raw.content)
            if num_items >= self._limits.window_requests or num_bytes >= self._limits.window_bytes:
                break
        return window

    async def _write_next(self, windows: deque[tuple[Raw, asyncio.Task[list[Result]]]]) -> None:
        last, task = windows[0]
        results = await task
        windows.popleft()
        await to_its_end(self._write, last, results)

    async def _answered(self, window: Sequence[Asked]) -> list[Result]:
        tasks = [asyncio.create_task(self._answer(*asked)) for asked in window]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _answer(self, raw: Raw, line: BatchLine) -> Result:
        """Return the line with the answer to a request."""
        folder, id = self.shelf.directory.name, f"{self.id}.{raw.number}"
        tenant.set("" if folder == WITHOUT_TOKEN else folder)
        bulk.set(True)
        response = await self._response(line, len(raw.content), id)
        told = {"id": f"batch_req_{token_hex(12)}", "custom_id": line.custom_id}
        about = b'"status_code":%d,"request_id":%b' % (response.status_code, orjson.dumps(id))
        answer = b'"response":{%b,"body":%b},"error":null}\n' % (about, bytes(response.body))
        return Result(orjson.dumps(told)[:-1] + b"," + answer, response.status_code >= 400)

    async def _response(self, line: BatchLine, num_bytes: int, id: str) -> Response:
        """Return the response to a request, repeated while the server is busy, or a few times if it is away."""
        endpoint, tries = self._endpoint(), 0
        headers = {TIMEOUT_HEADER: str(MAX_TIMEOUT_S), REQUEST_ID: id}
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        while True:
            request = DoorRequest({"method": "POST", "path": line.url, "headers": encoded}, self._door)
            request.content = line.body
            forwarded.set(request.identity())
            try:
                with self._door.memory.held() as held:
                    held.take(num_bytes * COPIES)
                    return await endpoint.with_failures(request, partial(endpoint.response, request))
            except Failure as failure:
                tries += failure.row.code not in BUSY
                if failure.retry_after_s is None or tries >= self._limits.num_tries:
                    return failure_response(failure, endpoint.dialect)
                await asyncio.sleep(min(self._limits.max_pause_s, failure.retry_after_s * 2**tries))

    def _endpoint(self) -> DoorEndpoint:
        """Return the endpoint of the route that answers the batch's requests."""
        for route in self._door.routes:
            if isinstance(route, Route) and route.path == self._batch["endpoint"]:
                assert isinstance(route.endpoint, DoorEndpoint)
                return route.endpoint
        raise LineError("url_mismatch", f"there is no route {self._batch['endpoint']}", "endpoint")

    def _write(self, last: Raw, results: Sequence[Result]) -> None:
        """Write the answers to the lines up to `last`, and then the place after them."""
        self.shelf.check_bytes(sum(len(result.line) for result in results))
        place, counts = {**self._batch["place"], "input": last.end, "line": last.number}, self._batch["request_counts"]
        for kind, is_error in (("output", False), ("error", True)):
            lines = [result.line for result in results if result.is_error is is_error]
            place[kind] += self._append(kind, lines)
        num_failed = sum(result.is_error for result in results)
        counts = {**counts, "failed": counts["failed"] + num_failed}
        counts["completed"] += len(results) - num_failed
        self._batch |= {"place": place, "request_counts": counts}
        self._save()

    def _append(self, kind: str, lines: Sequence[bytes]) -> int:
        """Write lines behind those that have a place; return their size in bytes, once the disk has them."""
        if not lines:
            return 0
        descriptor = os.open(self.shelf.path(self._batch[f"{kind}_id"]), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.truncate(self._batch["place"][kind])
            file.seek(self._batch["place"][kind])
            file.writelines(lines)
            file.flush()
            os.fdatasync(file.fileno())
        return sum(map(len, lines))

    def _save(self) -> None:
        self.shelf.write(f"{self.id}.open", self._batch)

    def _end(self, status: str, errors: Sequence[Record]) -> None:
        batch, cancel = self._batch, self.shelf.path(f"{self.id}.cancel")
        batch["finalizing_at"] = now()
        for kind in ("output", "error"):
            id, num_bytes = batch[f"{kind}_id"], batch["place"][kind]
            if num_bytes:
                os.truncate(self.shelf.path(id), num_bytes)
                self.shelf.add_file(id, f"{self.id}_{kind}.jsonl", "batch_output")
                batch[f"{kind}_file_id"] = id
            else:
                self.shelf.path(id).unlink(missing_ok=True)
        if errors:
            batch["errors"] = {"object": "list", "data": list(errors)}
        with suppress(FileNotFoundError):
            batch["cancelling_at"] = int(cancel.stat().st_mtime)
        self.shelf.end_batch(batch | {"status": status, f"{status}_at": now()})
