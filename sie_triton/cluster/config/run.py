"""Run the config service until SIGTERM or SIGINT."""

import asyncio
import logging
import os
import signal

from nats.js.kv import KeyValue

from sie_triton.cluster import subjects
from sie_triton.cluster.config.api import application
from sie_triton.cluster.config.model_file_store import ModelFileStore
from sie_triton.cluster.config.streams import Streams, open_bucket
from sie_triton.cluster.connection import OwnJetStream, connect, listen
from sie_triton.cluster.limits import ConfigLimits
from sie_triton.cluster.permissions import CONFIG
from sie_triton.cluster.tasks import restarted_forever
from sie_triton.cluster.workers import Workers
from sie_triton.controller.run import serve
from sie_triton.controller.token import admin_token
from sie_triton.settings import Settings, read_settings, words
from sie_triton.system.telemetry import logs

log = logging.getLogger(__name__)


def run(settings: Settings) -> None:
    logs.configure(settings.telemetry)
    asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    token = admin_token(settings.data_dir, settings.admin_token)
    async with ConfigService(settings) as service:
        await serve(application(service.store, service.workers, settings, token), settings.host, settings.config_port)


class ConfigService:
    """The connection to the queue and what is known by it, as a context manager. Belongs to one event loop."""

    def __init__(self, settings: Settings, limits: ConfigLimits = ConfigLimits()) -> None:
        self._settings, self._limits = settings, limits
        self.workers = Workers(limits)
        self._is_closing = False

    async def __aenter__(self) -> "ConfigService":
        name, limits = self._settings.config_producer, self._limits
        self._nats = await connect(self._settings, CONFIG, name, self._reconnected, self._closed, limits)
        self._js = OwnJetStream(self._nats, timeout=limits.queue_s)
        await listen(self._nats, subjects.ALL_WORKERS, self.workers.hear)
        self.store = ModelFileStore(self._bucket, name, words(self._settings.nats_config_trusted_producers), limits)
        streams = Streams(self._nats, self._js, self._settings, self.workers, limits)
        await streams.listen()
        parts = self.store.bucket.watch, streams.keep
        self._tasks = [asyncio.create_task(restarted_forever(work, limits.restart_s)) for work in parts]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await self._nats.close()

    async def _bucket(self) -> KeyValue:
        more = {"history": 64, "max_bytes": 1024**3}  # the longest history that NATS takes
        return await open_bucket(self._js, subjects.MODEL_FILES, self._settings, **more)

    async def _reconnected(self) -> None:
        self.store.bucket.doubt()

    async def _closed(self) -> None:
        if not self._is_closing:
            log.error("the queue refuses this config service; it ends, to be started anew")
            os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    run(read_settings())
