"""HTTP API of the config service: model files of a cluster, their versions, and which workers have them."""

import asyncio
import logging
import re
import time
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sie_triton.cluster import subjects
from sie_triton.cluster.config.model_file_store import ModelFileStore, Outcome, Refused
from sie_triton.cluster.connection import told
from sie_triton.cluster.model_files import ALL_POOLS, ModelFile, key
from sie_triton.cluster.workers import Workers
from sie_triton.contract.names import sie_name, triton_name
from sie_triton.contract.spec import GENERATE
from sie_triton.errors import CatalogError, InputError, UnbuiltFamily
from sie_triton.http.access import Guard, WebPageGuard
from sie_triton.http.server import small_body
from sie_triton.models.catalog.load import read_sent
from sie_triton.settings import Settings

REGISTRY = CollectorRegistry()

EPOCH = Gauge("sie_config_epoch", "Number of the latest change of a model file.", registry=REGISTRY)
FILES = Gauge("sie_config_model_files", "Model files of the cluster.", registry=REGISTRY)
CHANGES = Counter("sie_config_changes", "Changes that this process has made.", registry=REGISTRY)

log = logging.getLogger(__name__)


def application(store: ModelFileStore, workers: Workers, settings: Settings, admin_token: str) -> Starlette:
    """Return the application. Changes and the export need `admin_token`, reads one of auth_tokens, if there are any."""
    api, guard = Api(store, workers, settings), Guard.of(settings, admin_token)
    model = "/v1/configs/models/{model:path}"
    routes = [
        Route("/healthz", api.health),
        Route("/readyz", api.ready),
        Route("/metrics", guard.read(api.metrics)),
        Route("/v1/configs/epoch", guard.read(api.epoch)),
        Route("/v1/configs/export", guard.change(api.export)),
        Route("/v1/configs/models", guard.read(api.models)),
        Route("/v1/configs/models", guard.change(api.add), methods=["POST"]),
        Route(f"{model}/status", guard.read(api.status)),
        Route(model, guard.read(api.model)),
        Route(model, guard.change(api.remove), methods=["DELETE"]),
    ]
    web_pages = Middleware(WebPageGuard, settings, settings.host)
    return Starlette(routes=routes, middleware=[web_pages], exception_handlers=dict.fromkeys(FAILURES, _failure))


# Exceptions that are answers.
FAILURES = (Refused, CatalogError, InputError, MaxPayloadError, NatsError, TimeoutError, HTTPException)


def _failure(request: Request, exc: Exception) -> Response:
    """Return the answer to a request that failed: {"message": …}."""
    match exc:
        case Refused():
            return _failed(exc.status, str(exc))
        case CatalogError() | InputError():
            return _failed(400, str(exc))
        case MaxPayloadError():
            return _failed(413, "the model file is larger than a message of the queue (max_payload of nats-server)")
        case HTTPException():
            return _failed(exc.status_code, exc.detail.strip(), exc.headers)
    return _failed(503, f"the queue does not take the change ({told(exc)}); retry with the same Idempotency-Key")


def _failed(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    return JSONResponse({"message": message}, status, {"Retry-After": "1"} if status == 503 else headers)


class Api:
    """Handlers of the routes, on the event loop."""

    def __init__(self, store: ModelFileStore, workers: Workers, settings: Settings) -> None:
        self._store, self._workers, self._settings = store, workers, settings
        self._checks = asyncio.Semaphore(2)  # each takes a thread for milliseconds

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        is_ready = self._store.bucket.are_known.is_set()
        return JSONResponse({"status": "ok" if is_ready else "reading the log"}, 200 if is_ready else 503)

    async def metrics(self, request: Request) -> Response:
        EPOCH.set(self._store.bucket.epoch)
        FILES.set(sum(not file.is_removed for file in self._store.bucket.values.values()))
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    async def epoch(self, request: Request) -> Response:
        """Return the number of the latest change, a hash of all model files, and the epoch that each worker has."""
        self._check_known()
        workers = [
            {"worker": each.worker, "pool": each.pool, "epoch": each.epoch, "refused": [*map(sie_name, each.refused)]}
            for each in sorted(self._workers.all(), key=lambda each: (each.pool, each.worker))
        ]
        return JSONResponse(
            {"epoch": self._store.bucket.epoch, "bundles_hash": digest_of(self._present()), "workers": workers}
        )

    async def models(self, request: Request) -> Response:
        self._check_known()
        return JSONResponse({"models": [self._described(file) for file in self._present()]})

    async def model(self, request: Request) -> Response:
        file = self._find(request)
        return JSONResponse({**self._described(file), "file": file.text.decode()})

    async def status(self, request: Request) -> Response:
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
        return JSONResponse({"model": version.model, "epoch": epoch, "workers": found})

    async def export(self, request: Request) -> Response:
        """Return all model files, from which the cluster could be made again."""
        self._check_known()
        files = [{**self._described(file), "file": file.text.decode()} for file in self._present()]
        return JSONResponse({"epoch": self._store.bucket.epoch, "models": files})

    async def add(self, request: Request) -> Response:
        """Distribute the model file in the body; 201 for a new version, 200 for one that is there."""
        self._check_known()
        text = await small_body(request, 1024**2)
        model = await self._checked(text)
        return self._changed(model, await self._change(request, model, text))

    async def remove(self, request: Request) -> Response:
        """Remove a model from all workers of the pool."""
        self._check_known()
        model = request.path_params["model"]
        return self._changed(model, await self._change(request, model, b""))

    async def _change(self, request: Request, model: str, text: bytes) -> Outcome:
        outcome = await self._store.change(
            model, _pool(request), text, request=_idempotency_key(request), replaces=_replaced(request)
        )
        if outcome.is_new:
            CHANGES.inc()
            log.info("epoch %d: %s %s", outcome.epoch, model, "changed" if text else "removed")
        return outcome

    def _changed(self, model: str, outcome: Outcome) -> Response:
        told = {"model": model, "epoch": outcome.epoch, "changed": outcome.is_new}
        return JSONResponse(told, 201 if outcome.is_new else 200)

    async def _checked(self, text: bytes) -> str:
        """Return the name of the model in a model file; CatalogError if the file is wrong."""
        async with self._checks:
            return await asyncio.to_thread(check, text, self._settings)

    def _check_known(self) -> None:
        if not self._store.bucket.are_known.is_set():
            raise Refused(503, "the log is being read; retry")

    def _find(self, request: Request) -> ModelFile:
        self._check_known()
        name, pool = request.path_params["model"], _pool(request)
        found = self._store.bucket.values.get(key(pool, name))
        if found is None or found.is_removed or found.version.model != name:
            raise Refused(404, f"{name[:200]} has no model file {f'for pool {pool}' if pool else 'for all pools'}")
        return found

    def _present(self) -> list[ModelFile]:
        """Return the files that are not removed, sorted by model and pool."""
        files = (file for file in self._store.bucket.values.values() if not file.is_removed)
        return sorted(files, key=lambda file: (file.version.model, file.version.pool))

    def _epoch_of(self, file: ModelFile) -> int:
        return self._store.bucket.revision(key(file.version.pool, file.version.model))

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
            if each.resolve(settings.portable_runtime).is_forwarded:
                remedy = "add the file to a server of its own, and call its door"
                raise CatalogError(f"tasks.{GENERATE}: cannot be served by a cluster; {remedy}")
    except UnbuiltFamily as exc:
        raise CatalogError(str(exc)) from exc
    return model.sie_id


def digest_of(files: Sequence[ModelFile]) -> str:
    """Return a hash of model files that depends on nothing else."""
    return sha256("\n".join(f"{file.version.pool} {file.digest}" for file in files).encode()).hexdigest()


def _pool(request: Request) -> str:
    pool = request.query_params.get("pool", ALL_POOLS)
    return subjects.checked_name(pool, "pool") if pool else ALL_POOLS


def _idempotency_key(request: Request) -> str:
    given = request.headers.get("Idempotency-Key", "")
    if not re.fullmatch(r"[ -~]{0,200}", given):
        raise InputError.at("Idempotency-Key", "must be 1 to 200 printable ASCII characters")
    return given


def _replaced(request: Request) -> int | None:
    given = request.headers.get("If-Match")
    if given is None:
        return None
    if not given.strip('"').isdecimal() or len(given) > 20:
        raise InputError.at("If-Match", "must be the epoch of the version to replace; 0: there is none")
    return int(given.strip('"'))
