"""HTTP API of the controller: models and their states, changes, load and evict, health, Prometheus metrics."""

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic_ns
from typing import Any

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from tritonclient.utils import InferenceServerException

from sie_triton.contract.names import sie_name, triton_name
from sie_triton.controller.access import guard, web_page_guard
from sie_triton.controller.loop import PERIOD_S, Controller
from sie_triton.controller.metrics import Collector
from sie_triton.controller.model_control import OutOfService
from sie_triton.controller.model_states import ModelState
from sie_triton.controller.refresh import ChangeOutcome, ChangeRefused
from sie_triton.controller.unserved import unserved
from sie_triton.errors import LoadError, ModelLoading, ServerError
from sie_triton.records.serving_file import UNKNOWN, WRONG
from sie_triton.records.status import ENGINES
from sie_triton.settings import Settings
from sie_triton.system.processes.pulse import beat

log = logging.getLogger(__name__)

# Name of the route of the change that every client may make, as a request at the door does.
FOR_ALL = "serve-known"

CONTROLLER = web.AppKey("controller", Controller)

MAX_FILE_BYTES = 1024**2

# Maximum wait of a request for a known model to be served, in seconds; after that the client asks again.
MAX_WAIT_S = 25.0

# Maximum number of served models that an error names.
MAX_NAMES = 12


def application(controller: Controller, settings: Settings, admin_token: str) -> web.Application:
    """Return the application; it runs the controller's rounds while it is served.

    Changes need `admin_token` as bearer token. Reads, and serving a known model, need it or one of auth_tokens; without
    auth_mode they need no token.
    """
    middlewares = [web_page_guard(settings, settings.inner_host), guard(settings, admin_token, _is_for_all)]
    app = web.Application(client_max_size=MAX_FILE_BYTES, middlewares=middlewares)
    app[CONTROLLER] = controller
    api = Api(controller)
    app.add_routes(
        [
            web.get("/healthz", api.health),
            web.get("/readyz", api.ready),
            web.get("/metrics", api.metrics),
            web.get("/v1/models", api.models),
            web.put("/v1/models", api.add),
            web.get("/v1/models/{model}", api.model),
            web.put("/v1/models/{model}", api.serve_known, name=FOR_ALL),
            web.delete("/v1/models/{model}", api.remove),
            web.get("/v1/models/{model}/loras", api.loras),
            web.put("/v1/models/{model}/loras", api.add_lora),
            web.delete("/v1/models/{model}/loras/{name:.+}", api.remove_lora),
            web.post("/v1/models/{model}/{action:load|evict|unload}", api.act),
        ]
    )
    app.cleanup_ctx.append(_rounds)
    return app


def _is_for_all(request: web.Request) -> bool:
    return request.method in ("GET", "HEAD") or request.match_info.route.name == FOR_ALL


async def _rounds(app: web.Application) -> AsyncIterator[None]:
    """Run the rounds in sequence, on a thread that no request uses. Each round sends a heartbeat."""
    controller, thread = app[CONTROLLER], ThreadPoolExecutor(1, "round")

    async def run() -> None:
        while True:
            try:
                await asyncio.get_running_loop().run_in_executor(thread, controller.tick)
            except Exception:
                log.exception("a round of the controller failed")
            beat()
            await asyncio.sleep(PERIOD_S)

    task = asyncio.create_task(run())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    thread.shutdown(wait=False)
    controller.close()


# HTTP errors by reason of a refusal; 409 for all others.
REFUSALS: dict[str, type[web.HTTPClientError]] = {WRONG: web.HTTPBadRequest, UNKNOWN: web.HTTPNotFound}


class Api:
    """Handlers of the controller's routes, called on aiohttp's event loop; threads wait for Triton and weights.

    They raise aiohttp's HTTP errors: 400 for an invalid model file, 404 for a model that is not served, 409 for a model
    out of service or a name that is taken, 413 for a file larger than MAX_FILE_BYTES, 502 if Triton refuses the
    request, 503 if weights cannot be loaded.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._registry = CollectorRegistry()
        self._registry.register(Collector(controller))

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        trouble = await asyncio.to_thread(self._controller.trouble)
        if trouble:
            return web.json_response({"status": "not ready", "reason": trouble}, status=503)
        return web.json_response({"status": "ok"})

    async def metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def models(self, request: web.Request) -> web.Response:
        memory = self._controller.memory
        adapters = self._controller.loras.in_memory()
        served = self._served()
        models = [self._described(model, adapters) for model in served.values()]
        total = {"used_bytes": memory.used, "limit_bytes": memory.limit, "source": memory.source}
        total["server_bytes"] = memory.server
        problems = dict(self._controller.changes.problems)
        wrong = {name: reason for name, reason in unserved(problems).items() if triton_name(name) not in served}
        told = {"models": models, "memory": total, "problems": problems, "unserved": wrong}
        return web.json_response(told | self._controller.machine)

    async def model(self, request: web.Request) -> web.Response:
        return web.json_response(self._described(self._find(request), self._controller.loras.in_memory()))

    async def add(self, request: web.Request) -> web.Response:
        """Serve the model of the model file in the body; return when it is in service."""
        outcome = await _changed(self._controller.changes.add(await request.read()))
        return web.json_response({"model": sie_name(outcome.model), "done": outcome.done_to(outcome.model)})

    async def serve_known(self, request: web.Request) -> web.Response:
        """Serve a known model because a client wants to call it; return when it is in service."""
        name = _name(request)
        if name not in self._served():
            await self._mention(name)
        return web.json_response({"model": sie_name(name), "done": "served"})

    async def _mention(self, name: str) -> None:
        """Serve a known model, by Triton's name."""
        try:
            future = await asyncio.to_thread(self._controller.changes.mention, sie_name(name))
            # A client that disconnects must not cancel the future of the others.
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), MAX_WAIT_S)
        except TimeoutError as exc:
            raise _not_yet(f"{sie_name(name)} waits to be served") from exc
        except ChangeRefused as exc:
            raise self._not_found(name, str(exc)) from exc
        except ModelLoading as exc:
            raise _not_yet(str(exc)) from exc
        except InferenceServerException as exc:
            raise web.HTTPBadGateway(text=f"Triton: {exc.message()}\n") from exc
        except ServerError as exc:
            raise web.HTTPBadGateway(text=f"{exc}\n") from exc

    async def remove(self, request: web.Request) -> web.Response:
        """Remove the model; return when no new request reaches it."""
        outcome = await _changed(self._controller.changes.remove(_name(request)))
        return web.json_response({"model": sie_name(outcome.model), "done": "removed"})

    async def act(self, request: web.Request) -> web.Response:
        """Load, evict or unload the model; return when Triton has done so."""
        action = request.match_info["action"]
        act = {"load": self._controller.load, "evict": self._evict, "unload": self._controller.unload}[action]
        try:
            model = await self._find_unloaded(request) if action == "load" else self._find(request).name
            await asyncio.wrap_future(act(model))
        except InferenceServerException as exc:
            raise web.HTTPBadGateway(text=f"Triton: {exc.message()}\n") from exc
        except OutOfService as exc:
            raise web.HTTPConflict(text=f"{exc}; load it to put it back into service\n") from exc
        except LoadError as exc:
            raise web.HTTPServiceUnavailable(text=f"{sie_name(model)}: {exc.reason}: {exc}\n") from exc
        return web.json_response({"model": sie_name(model), "done": action})

    async def loras(self, request: web.Request) -> web.Response:
        return web.json_response(await asyncio.to_thread(self._controller.loras.listed, self._find(request).name))

    async def add_lora(self, request: web.Request) -> web.Response:
        """Add the adapter in the body, {"name": …, "source": …} as JSON; later requests may name it."""
        model, given = self._find(request).name, await _lora_in(request)
        done = await _done(self._controller.loras.add, model, *given)
        return web.json_response({"model": sie_name(model), "name": given[0], "done": done})

    async def remove_lora(self, request: web.Request) -> web.Response:
        """Remove the adapter; requests in progress continue to use it."""
        model, name = self._find(request).name, request.match_info["name"]
        done = await _done(self._controller.loras.remove, model, name)
        return web.json_response({"model": sie_name(model), "name": name, "done": done})

    def _evict(self, model: str) -> Any:
        return self._controller.evict(model, "asked for")

    def _find(self, request: web.Request) -> ModelState:
        name = _name(request)
        found = self._served().get(name)
        if found is None:
            raise self._not_found(name, f"{sie_name(name)} is not served")
        return found

    def _not_found(self, name: str, reason: str) -> web.HTTPNotFound:
        """Return the error for Triton's model `name`; if its model file is wrong, that is the reason."""
        wrong = unserved(self._controller.changes.problems).get(sie_name(name))
        served = sorted(map(sie_name, self._served()))
        more = f" and {len(served) - MAX_NAMES} more" if len(served) > MAX_NAMES else ""
        names = f"{', '.join(served[:MAX_NAMES]) or 'none'}{more}"
        return web.HTTPNotFound(text=f"{reason}{f' ({wrong})' if wrong else ''}; served models: {names}\n")

    def _served(self) -> dict[str, ModelState]:
        return {model.name: model for model in self._controller.models.values() if not model.is_removed}

    def _described(self, model: ModelState, adapters: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Return one model as JSON, with its source if known; `adapters` are the bytes of LoRA adapters in memory."""
        served, of_model = self._controller.changes.served(model.name), adapters.get(model.name, ())
        described = describe(model) | {"num_loras": len(of_model), "lora_bytes": sum(of_model)}
        described |= {"failure_message": self._controller.failure_message(model) or None}
        described |= {"traffic": self._controller.traffic_of(model.name)}
        return described | ({"source": served.source, "changed_at": served.changed_at} if served else {})

    async def _find_unloaded(self, request: web.Request) -> str:
        """Return the name of the request's model, which may be out of service, or known; HTTPNotFound if not."""
        name = _name(request)
        if not await asyncio.to_thread(self._controller.knows, name):
            await self._mention(name)
        return name


def _not_yet(reason: str) -> web.HTTPServiceUnavailable:
    headers = {"Retry-After": str(ModelLoading.retry_after_s)}
    return web.HTTPServiceUnavailable(text=f"{reason}\n", headers=headers)


async def _changed(change: Future[ChangeOutcome]) -> ChangeOutcome:
    try:
        return await asyncio.wrap_future(change)
    except ChangeRefused as exc:
        raise REFUSALS.get(exc.why, web.HTTPConflict)(text=f"{exc}\n") from exc
    except InferenceServerException as exc:
        raise web.HTTPBadGateway(text=f"Triton: {exc.message()}\n") from exc
    except ServerError as exc:
        raise web.HTTPBadGateway(text=f"{exc}\n") from exc


async def _done(change: Callable[..., str], *given: str) -> str:
    """Run a change of an adapter on a thread, and return its result; its errors become HTTP errors."""
    try:
        return await asyncio.to_thread(change, *given)
    except ChangeRefused as exc:
        raise REFUSALS.get(exc.why, web.HTTPConflict)(text=f"{exc}\n") from exc
    except OSError as exc:
        raise web.HTTPInternalServerError(text=f"the list of adapters cannot be written: {exc}\n") from exc


async def _lora_in(request: web.Request) -> tuple[str, str]:
    wanted = 'body: must be JSON such as {"name": "banking", "source": "org/name"}\n'
    try:
        given = json.loads(await request.read())
    except (ValueError, RecursionError) as exc:
        raise web.HTTPBadRequest(text=wanted) from exc
    if not isinstance(given, dict) or given.keys() != {"name", "source"} or {*map(type, given.values())} != {str}:
        raise web.HTTPBadRequest(text=wanted)
    return given["name"], given["source"]


def _name(request: web.Request) -> str:
    return triton_name(request.match_info["model"])


def describe(model: ModelState) -> dict[str, Any]:
    """Return the state of one model as JSON, with times in seconds."""
    record, now = model.record, monotonic_ns()
    used = record["last_used_ns"]
    return {
        "model": sie_name(model.name),
        "state": model.state,
        "failure": model.failure or None,
        "dead_stages": list(model.dead_stages),
        "memory_bytes": model.num_bytes,
        "engine": ENGINES[record["engine"]] if model.is_resident else None,
        "graph_tokens": record["graph_tokens"],
        "idle_s": round((now - used) / 1e9, 3) if used else None,
        "pending": model.pending,
        "pid": record["pid"],
        "worker_pid": record["worker_pid"] or None,
        "waits_for_bytes": model.wants,
        "num_draining": len(model.going),
    }
