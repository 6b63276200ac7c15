"""Keeps the models of the server beside this sidecar as the config service wants them.

bucket of model files → compare with the server's own → the controller's live changes
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus

import aiohttp

from sie_triton.cluster.bucket import Bucket
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.model_files import ModelFile, of_pool
from sie_triton.cluster.sidecar.server import Found, ServerModels
from sie_triton.contract.names import sie_name

log = logging.getLogger(__name__)

# Answers that another attempt with the same file would get again.
FINAL = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.CONFLICT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE})


class ModelFiles:
    """Applies the model files for a pool. Belongs to one event loop.

    `epoch` is that of the latest change that has been applied; `refused` are the models, by Triton's names, whose file
    the server does not take, and `adding` those that it is about to serve. `when_applied` is called after each change
    of the server. `look_s` is the interval between two comparisons with the server, whose files may have been changed
    by hand; 0: none after the start.
    """

    def __init__(
        self,
        bucket: Bucket[ModelFile],
        server: ServerModels,
        pool: str,
        look_s: float,
        limits: SidecarLimits = SidecarLimits(),
    ) -> None:
        self._bucket, self._server, self._pool, self._limits = bucket, server, pool, limits
        self._look_s = look_s or None
        self._changed = asyncio.Event()
        self._bucket.when_changed = lambda *_: self._changed.set()
        self._refused: dict[str, str] = {}
        self.adding: set[str] = set()
        self.watch, self.doubt = bucket.watch, bucket.doubt
        self.when_applied: Callable[[], None] = lambda: None
        self.epoch = 0

    @property
    def refused(self) -> list[str]:
        return sorted(self._refused)

    @contextmanager
    def adds(self, model: str) -> Iterator[None]:
        """Count a model as one that the server is about to serve, until all its ensembles are there."""
        self.adding.add(model)
        try:
            yield
        finally:
            self.adding.discard(model)

    async def keep(self) -> None:
        """Apply changes as they come, for ever."""
        await self._bucket.are_known.wait()
        while True:
            self._changed.clear()
            is_done = await self._apply()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), self._look_s if is_done else self._limits.apply_retry_s)

    async def _apply(self) -> bool:
        """Bring the server up to date; False if that must be tried again."""
        epoch, files = self._bucket.epoch, of_pool(self._bucket.values, self._pool)
        self._refused = {name: digest for name, digest in self._refused.items() if name in files}
        found = await asyncio.to_thread(self._server.found)
        if found is None:
            return False
        # One after the other, as the controller does them. A file that fails holds up no other one.
        have_it = [await self._apply_one(name, file, found) for name, file in files.items()]
        if all(have_it):
            self.epoch = epoch
        return all(have_it)

    async def _apply_one(self, name: str, file: ModelFile, found: Found) -> bool:
        """Apply one file unless the server has it or refuses it; False if that must be tried again."""
        has_it = name not in found.served if file.is_removed else found.added.get(name) == file.text
        if has_it or self._refused.get(name) == file.digest:
            return True
        self._refused.pop(name, None)
        try:
            with self.adds(name):
                status, reason = await (self._server.remove(name) if file.is_removed else self._server.add(file.text))
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            log.warning("model files: %s: the controller does not answer (%s)", sie_name(name), type(exc).__name__)
            return False
        if status in FINAL:
            self._refused[name] = file.digest
            log.error("model files: %s: the server refuses: %s", sie_name(name), reason)
        elif status not in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
            log.warning("model files: %s: not changed yet: %s", sie_name(name), reason)
            return False
        else:
            log.info("model files: %s: %s", sie_name(name), "removed" if file.is_removed else "served")
            self.when_applied()
        return True
