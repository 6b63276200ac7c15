"""Runner of all batches of a server: the door process that holds a lock. If it ends, another one takes over."""

import asyncio
import logging
from contextlib import suppress
from time import monotonic

from sie_triton.doors.batches.files import FILES, shelf
from sie_triton.doors.batches.run import BatchRun
from sie_triton.doors.batches.shelf import WITHOUT_TOKEN, Shelf
from sie_triton.doors.endpoint import Door
from sie_triton.system.host.file_locks import Lock, LockFile

log = logging.getLogger(__name__)


class BatchRunner:
    """Belongs to the event loop of `door`. `run` never ends; once it is cancelled, another process goes on."""

    def __init__(self, door: Door) -> None:
        self._door, self._limits = door, door.limits.batch
        self._directory = door.settings.data_dir / FILES
        self._locks = LockFile(self._directory / "lock")
        self._lock: Lock | None = None
        self._runs: dict[str, tuple[BatchRun, asyncio.Task[None]]] = {}
        self._swept_at = 0.0

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._look()
                except Exception:
                    log.exception("batches cannot run now")
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.poll_s):
                        await self._door.batch_event.wait()
                self._door.batch_event.clear()
        finally:
            tasks = [task for _, task in self._runs.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._lock is not None:
                self._lock.release()

    async def _look(self) -> None:
        """Begin the oldest batches that may run, and stop those that must."""
        if self._lock is None:
            self._lock = await asyncio.to_thread(lambda: self._locks.lock(0, 1) if self._directory.is_dir() else None)
        if self._lock is None:
            return
        for id in [id for id, (_, task) in self._runs.items() if task.done()]:
            _, task = self._runs.pop(id)
            if not task.cancelled() and (error := task.exception()) is not None:
                log.warning("batch %s cannot end now: %s", id, error)
        for run, task in self._runs.values():
            await run.look()
            if not self._is_allowed(run.shelf.directory.name):
                task.cancel()
        is_full = len(self._runs) >= self._limits.num_running
        for each, id, must_end in [] if is_full and not self._is_due else await asyncio.to_thread(self._open_batches):
            if id not in self._runs and (must_end or len(self._runs) < self._limits.num_running):
                run = BatchRun(self._door, each, id)
                self._runs[id] = run, asyncio.create_task(run.run())

    @property
    def _is_due(self) -> bool:
        return monotonic() >= self._swept_at + self._limits.sweep_s

    def _is_allowed(self, folder: str) -> bool:
        """Return whether the token of a folder is one now."""
        return folder in {name or WITHOUT_TOKEN for name in self._door.trust.tenants()}

    def _open_batches(self) -> list[tuple[Shelf, str, bool]]:
        """Return the batches that have not ended, and whether they must, in the order in which they run.

        The oldest ones of each token come first. Remove what has expired, if it is time.
        """
        is_due = self._is_due
        found: list[tuple[int, str, Shelf, bool]] = []
        for path in self._directory.iterdir():
            if path.is_dir():
                each = shelf(self._door, path.name)
                if is_due:
                    each.sweep()
                batches = list(each.open_batches()) if self._is_allowed(path.name) else []
                batches.sort(key=lambda batch: str(batch["id"]))
                found += [(i, batch["id"], each, bool(each.outcome(batch))) for i, batch in enumerate(batches)]
        self._swept_at = monotonic() if is_due else self._swept_at
        return [(each, id, must_end) for _, id, each, must_end in sorted(found, key=lambda one: one[:2])]
