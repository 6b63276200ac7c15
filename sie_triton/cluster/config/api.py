"""HTTP API of the config service: model files of a cluster, their versions, and which workers have them."""

import asyncio
import logging
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from sie_triton.cluster import subjects
from sie_triton.cluster.config.metrics import CHANGES, EPOCH, FILES, REGISTRY
from sie_triton.cluster.config.model_file_store import ModelFileStore, Outcome, Refused
from sie_triton.cluster.connection import told
from sie_triton.cluster.model_files import ALL_POOLS, MAX_FILE_BYTES, ModelFile, key
from sie_triton.cluster.workers import Workers
from sie_triton.contract.names import sie_name, triton_name
from sie_triton.controller.access import guard, web_page_guard
from sie_triton.errors import CatalogError, InputError, UnbuiltFamily
from sie_triton.models.catalog.load import read_sent
from sie_triton.settings import Settings

log = logging.getLogger(__name__)

EXPORT = "export"

MAX_KEY_CHARACTERS = 200

# Model files that are checked at a time: each takes a thread for milliseconds.
MAX_CHECKS = 2

Answer = web.Response


def application(book: ModelFileStore, workers: Workers, settings: Settings, admin_token: str) -> web.Application:
    """Return the application. Changes and the export need `admin_token`, reads one of auth_tokens, if there are any."""
    middlewares = [web_page_guard(settings, settings.host), guard(settings, admin_token, _is_for_all), failures]
    app = web.Application(client_max_size=MAX_FILE_BYTES, middlewares=middlewares)
    api = Api(book, workers, settings)
    app.add_routes(
        [
            web.get("/healthz", api.health),
            web.get("/readyz", api.ready),
            web.get("/metrics", api.metrics),
            web.get("/v1/configs/epoch", api.epoch),
            web.get("/v1/configs/export", api.export, name=EXPORT),
            web.get("/v1/configs/models", api.models),
            web.post("/v1/configs/models", api.add),
            web.get("/v1/configs/models/{model:.+}/status", api.status),
            web.get("/v1/configs/models/{model:.+}", api.model),
            web.delete("/v1/configs/models/{model:.+}", api.remove),
        ]
    )
    return app


def _is_for_all(request: web.Request) -> bool:
    return request.method in ("GET", "HEAD") and request.match_info.route.name != EXPORT


@web.middleware
async def failures(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn errors into JSON: {"message": …}."""
    try:
        return await handler(request)
    except Refused as exc:
        return _failed(exc.status, str(exc))
    except (CatalogError, InputError) as exc:
        return _failed(400, str(exc))
    except MaxPayloadError:
        return _failed(413, "the model file is larger than a message of the queue (max_payload of nats-server)")
    except (NatsError, TimeoutError) as exc:
        return _failed(503, f"the queue does not take the change ({told(exc)}); retry with the same Idempotency-Key")
    except web.HTTPException as exc:
        return _failed(exc.status, (exc.text or exc.reason).strip())


def _failed(status: int, message: str) -> Answer:
    return web.json_response({"message": message}, status=status, headers={"Retry-After": "1"} if status == 503 else {})


class Api:
    """Handlers of the routes, on aiohttp's event loop."""

    def __init__(self, book: ModelFileStore, workers: Workers, settings: Settings) -> None:
        self._book, self._workers, self._settings = book, workers, settings
        self._checks = asyncio.Semaphore(MAX_CHECKS)

    async def health(self, request: web.Request) -> Answer:
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> Answer:
        is_ready = self._book.bucket.are_known.is_set()
        return web.json_response({"status": "ok" if is_ready else "reading the log"}, status=200 if is_ready else 503)

    async def metrics(self, request: web.Request) -> Answer:
        EPOCH.set(self._book.bucket.epoch)
        FILES.set(sum(not file.is_removed for file in self._book.bucket.values.values()))
        return Answer(body=generate_latest(REGISTRY), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def epoch(self, request: web.Request) -> Answer:
        """Return the number of the latest change, a hash of all model files, and the epoch that each worker has."""
        self._check_known()
        workers = [
            {"worker": each.worker, "pool": each.pool, "epoch": each.epoch, "refused": [*map(sie_name, each.refused)]}
            for each in sorted(self._workers.all(), key=lambda each: (each.pool, each.worker))
        ]
        return web.json_response(
            {"epoch": self._book.bucket.epoch, "bundles_hash": digest_of(self._present()), "workers": workers}
        )

    async def models(self, request: web.Request) -> Answer:
        self._check_known()
        return web.json_response({"models": [self._described(file) for file in self._present()]})

    async def model(self, request: web.Request) -> Answer:
        file = self._find(request)
        return web.json_response({**self._described(file), "file": file.text.decode()})

    async def status(self, request: web.Request) -> Answer:
        """Return for each worker of the model's pools whether it serves the latest version."""
        file = self._find(request)
        version, epoch = file.version, self._epoch_of(file)
        name = triton_name(version.model)
        found = [
            {
                "worker": each.worker,
                "pool": each.pool,
                "state": "refused" if name in each.refused else "served" if each.epoch >= epoch else "behind",
            }
            for each in self._workers.all()
            if version.pool in (ALL_POOLS, each.pool)
        ]
        return web.json_response({"model": version.model, "epoch": epoch, "workers": found})

    async def export(self, request: web.Request) -> Answer:
        """Return all model files, from which the cluster could be made again."""
        self._check_known()
        files = [{**self._described(file), "file": file.text.decode()} for file in self._present()]
        return web.json_response({"epoch": self._book.bucket.epoch, "models": files})

    async def add(self, request: web.Request) -> Answer:
        """Distribute the model file in the body; 201 for a new version, 200 for one that is there."""
        self._check_known()
        text = await request.read()
        model = await self._checked(text)
        return self._changed(model, await self._change(request, model, text))

    async def remove(self, request: web.Request) -> Answer:
        """Remove a model from all workers of the pool."""
        self._check_known()
        model = request.match_info["model"]
        return self._changed(model, await self._change(request, model, b""))

    async def _change(self, request: web.Request, model: str, text: bytes) -> Outcome:
        outcome = await self._book.change(
            model, _pool(request), text, request=_idempotency_key(request), replaces=_replaced(request)
        )
        if outcome.is_new:
            CHANGES.inc()
            log.info("epoch %d: %s %s", outcome.epoch, model, "changed" if text else "removed")
        return outcome

    def _changed(self, model: str, outcome: Outcome) -> Answer:
        told = {"model": model, "epoch": outcome.epoch, "changed": outcome.is_new}
        return web.json_response(told, status=201 if outcome.is_new else 200)

    async def _checked(self, text: bytes) -> str:
        """Return the name of the model in a model file; CatalogError if the file is wrong."""
        async with self._checks:
            return await asyncio.to_thread(check, text, self._settings)

    def _check_known(self) -> None:
        if not self._book.bucket.are_known.is_set():
            raise Refused(503, "the log is being read; retry")

    def _find(self, request: web.Request) -> ModelFile:
        self._check_known()
        name, pool = request.match_info["model"], _pool(request)
        found = self._book.bucket.values.get(key(pool, name))
        if found is None or found.is_removed or found.version.model != name:
            raise Refused(404, f"{name[:200]} has no model file {f'for pool {pool}' if pool else 'for all pools'}")
        return found

    def _present(self) -> list[ModelFile]:
        """Return the files that are not removed, sorted by model and pool."""
        files = (file for file in self._book.bucket.values.values() if not file.is_removed)
        return sorted(files, key=lambda file: (file.version.model, file.version.pool))

    def _epoch_of(self, file: ModelFile) -> int:
        return self._book.bucket.revision(key(file.version.pool, file.version.model))

    def _described(self, file: ModelFile) -> dict[str, Any]:
        version = file.version
        return {
            "model": version.model,
            "pool": version.pool,
            "epoch": self._epoch_of(file),
            "changed_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(version.at)),
            "sha256": file.digest,
        }


def check(text: bytes, settings: Settings) -> str:
    """Return the name of the model in a model file; CatalogError if no worker can serve it."""
    try:
        model = read_sent(text)
        for each in (model, *model.variants()):
            each.resolve(settings.portable_runtime)
    except UnbuiltFamily as exc:
        raise CatalogError(str(exc)) from exc
    return model.sie_id


def digest_of(files: Sequence[ModelFile]) -> str:
    """Return a hash of model files that depends on nothing else."""
    return sha256("\n".join(f"{file.version.pool} {file.digest}" for file in files).encode()).hexdigest()


def _pool(request: web.Request) -> str:
    pool = request.query.get("pool", ALL_POOLS)
    return subjects.checked_name(pool, "pool") if pool else ALL_POOLS


def _idempotency_key(request: web.Request) -> str:
    given = request.headers.get("Idempotency-Key", "")
    if len(given) > MAX_KEY_CHARACTERS or not given.isascii() or not (given.isprintable() or not given):
        raise InputError.at("Idempotency-Key", f"must be 1 to {MAX_KEY_CHARACTERS} printable ASCII characters")
    return given


def _replaced(request: web.Request) -> int | None:
    given = request.headers.get("If-Match")
    if given is None:
        return None
    if not given.strip('"').isdecimal() or len(given) > 20:
        raise InputError.at("If-Match", "must be the epoch of the version to replace; 0: there is none")
    return int(given.strip('"'))
