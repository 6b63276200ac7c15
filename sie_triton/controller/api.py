"""HTTP API of the controller: models and their states, changes, load and evict, health, Prometheus metrics."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from time import monotonic_ns
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tritonclient.utils import InferenceServerException

from sie_triton.contract.names import enumerated, sie_name, triton_name
from sie_triton.controller.loop import Controller
from sie_triton.controller.memory import DeviceMemory, total
from sie_triton.controller.metrics import Collector
from sie_triton.controller.model_control import OutOfService
from sie_triton.controller.model_states import ModelState
from sie_triton.controller.repository import unserved
from sie_triton.errors import LoadError, ModelLoading, ServerError
from sie_triton.http.access import Guard, WebPageGuard
from sie_triton.http.server import small_body
from sie_triton.records.change import UNKNOWN, WRONG, ChangeOutcome, ChangeRefused
from sie_triton.records.status import ENGINES, RESIDENT
from sie_triton.settings import Settings
from sie_triton.system.processes.supervisor import beat

log = logging.getLogger(__name__)


class NameOrId(Convertor[str]):
    """A model in a path: name or org/name."""

    regex = "[^/]+(?:/[^/]+)?"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("model", NameOrId())
MODEL = "/v1/models/{model:model}"


def application(controller: Controller, settings: Settings, admin_token: str) -> Starlette:
    """Return the application; it runs the controller's rounds while it is served.

    Changes need `admin_token` as bearer token. Reads, and serving a known model, need it or one of auth_tokens; without
    auth_mode they need no token.
    """
    api, guard = Api(controller), Guard.of(settings, admin_token)
    routes = [
        Route("/healthz", api.health),
        Route("/readyz", api.ready),
        Route("/metrics", guard.read(api.metrics)),
        Route("/v1/models", guard.read(api.models)),
        Route("/v1/models", guard.change(api.add), methods=["PUT"]),
        Route(f"{MODEL}/loras", guard.read(api.loras)),
        Route(f"{MODEL}/loras", guard.change(api.add_lora), methods=["PUT"]),
        Route(f"{MODEL}/loras/{{name:path}}", guard.change(api.remove_lora), methods=["DELETE"]),
        *(Route(f"{MODEL}/{name}", guard.change(act), methods=["POST"]) for name, act in api.actions.items()),
        Route(MODEL, guard.read(api.model)),
        Route(MODEL, guard.read(api.serve_known), methods=["PUT"]),  # as a request at the door, every client may
        Route(MODEL, guard.change(api.remove), methods=["DELETE"]),
    ]
    web_pages = Middleware(WebPageGuard, settings, settings.inner_host)
    return Starlette(
        routes=routes, middleware=[web_pages], lifespan=lambda _: rounds(controller, controller.limits.round_s)
    )


@asynccontextmanager
async def rounds(controller: Controller, period_s: float) -> AsyncIterator[None]:
    """Run the rounds that are due in sequence, on a thread that no request uses, with a heartbeat each second."""
    thread = ThreadPoolExecutor(1, "round")

    async def run() -> None:
        on_thread = partial(asyncio.get_running_loop().run_in_executor, thread)
        while True:
            pause_s = period_s
            try:
                if await on_thread(controller.is_due):
                    await on_thread(controller.tick)
                else:
                    pause_s = 0
            except Exception:
                log.exception("a round of the controller failed")
            beat()
            await asyncio.sleep(pause_s)

    task = asyncio.create_task(run())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    thread.shutdown(wait=False)
    controller.close()


# Statuses by reason of a refusal; 409 for all others.
REFUSALS = {WRONG: 400, UNKNOWN: 404}


class Api:
    """Handlers of the controller's routes, called on the event loop; threads wait for Triton and weights.

    They raise HTTPException: 400 for an invalid model file, 404 for a model that is not served, 409 for a model
    out of service or a name that is taken, 413 for a body that is too large, 502 if Triton refuses the
    request, 503 if weights cannot be loaded, or a known model not yet be served.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller, self._limits = controller, controller.limits
        self._registry = CollectorRegistry()
        self._registry.register(Collector(controller))
        acts: dict[str, Callable[[str], Future[Any]]] = {
            "load": controller.load,
            "evict": partial(controller.evict, reason="asked for"),
            "unload": controller.unload,
        }
        self.actions = {name: partial(self._act, name, act) for name, act in acts.items()}

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        trouble = await asyncio.to_thread(self._controller.trouble)
        if trouble:
            return JSONResponse({"status": "not ready", "reason": trouble}, 503)
        return JSONResponse({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)

    async def models(self, request: Request) -> Response:
        adapters = self._controller.loras.in_memory()
        served = self._served()
        models = [self._described(model, adapters) for model in served.values()]
        memories = self._controller.memories
        memory = of_memory(total([*memories.values()]))
        memory["devices"] = [{"device": device} | of_memory(each) for device, each in memories.items()]
        problems = dict(self._controller.changes.problems)
        wrong = {name: reason for name, reason in unserved(problems).items() if triton_name(name) not in served}
        told = {"models": models, "memory": memory, "problems": problems, "unserved": wrong}
        told |= {"forwarded": dict(self._controller.changes.forwarded)}
        return JSONResponse(told | self._controller.machine)

    async def model(self, request: Request) -> Response:
        return JSONResponse(self._described(self._find(request), self._controller.loras.in_memory()))

    async def add(self, request: Request) -> Response:
        """Serve the model of the model file in the body; return when it is in service."""
        outcome = await _changed(self._controller.changes.add(await small_body(request, self._limits.max_body_bytes)))
        return JSONResponse({"model": sie_name(outcome.model), "done": outcome.done_to(outcome.model)})

    async def serve_known(self, request: Request) -> Response:
        """Serve a known model because a client wants to call it; return when it is in service."""
        name = _name(request)
        if name not in self._served():
            await self._mention(name)
        return JSONResponse({"model": sie_name(name), "done": "served"})

    async def _mention(self, name: str) -> None:
        """Serve a known model, by Triton's name."""
        with http_errors():
            try:
                future = await asyncio.to_thread(self._controller.changes.mention, sie_name(name))
                # A client that disconnects must not cancel the future of the others.
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(future)), self._limits.mention_wait_s)
            except TimeoutError as exc:
                raise ModelLoading(f"{sie_name(name)} waits to be served") from exc
            except ChangeRefused as exc:
                raise self._not_found(name, str(exc)) from exc

    async def remove(self, request: Request) -> Response:
        """Remove the model; return when no new request reaches it."""
        outcome = await _changed(self._controller.changes.remove(_name(request)))
        return JSONResponse({"model": sie_name(outcome.model), "done": "removed"})

    async def _act(self, action: str, act: Callable[[str], Future[Any]], request: Request) -> Response:
        """Load, evict or unload the model; return when Triton has done so."""
        model = await self._find_unloaded(request) if action == "load" else self._find(request).name
        with http_errors(f"{sie_name(model)}: "):
            await asyncio.wrap_future(act(model))
        return JSONResponse({"model": sie_name(model), "done": action})

    async def loras(self, request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(self._controller.loras.listed, self._find(request).name))

    async def add_lora(self, request: Request) -> Response:
        """Add the adapter in the body, {"name": …, "source": …} as JSON; later requests may name it."""
        model, given = self._find(request).name, await _lora_in(request, self._limits.max_body_bytes)
        done = await _done(self._controller.loras.add, model, *given)
        return JSONResponse({"model": sie_name(model), "name": given[0], "done": done})

    async def remove_lora(self, request: Request) -> Response:
        """Remove the adapter; requests in progress continue to use it."""
        model, name = self._find(request).name, request.path_params["name"]
        done = await _done(self._controller.loras.remove, model, name)
        return JSONResponse({"model": sie_name(model), "name": name, "done": done})

    def _find(self, request: Request) -> ModelState:
        name = _name(request)
        found = self._served().get(name)
        if found is None:
            raise self._not_found(name, f"{sie_name(name)} is not served")
        return found

    def _not_found(self, name: str, reason: str) -> HTTPException:
        """Return the error for Triton's model `name`; if its model file is wrong, that is the reason."""
        wrong = unserved(self._controller.changes.problems).get(sie_name(name))
        served = sorted(map(sie_name, self._served()))
        names = enumerated(served, self._limits.max_names_shown) or "none"
        return HTTPException(404, f"{reason}{f' ({wrong})' if wrong else ''}; served models: {names}\n")

    def _served(self) -> dict[str, ModelState]:
        return {model.name: model for model in self._controller.models.values() if not model.is_removed}

    def _described(self, model: ModelState, adapters: Mapping[str, Sequence[int]]) -> dict[str, Any]:
        """Return one model as JSON, with its source if known; `adapters` are the bytes of LoRA adapters in memory."""
        served, of_model = self._controller.changes.served(model.name), adapters.get(model.name, ())
        described = describe(model) | {"num_loras": len(of_model), "lora_bytes": sum(of_model)}
        copies = [self._controller.device_of(copy) for copy in model.copies if copy["state"] == RESIDENT]
        described |= {"device": self._controller.device_of(model.record), "copies": copies}
        described |= {"failure_message": self._controller.failure_message(model) or None}
        described |= {"traffic": self._controller.traffic_of(model.name)}
        return described | ({"source": served.source, "changed_at": served.changed_at} if served else {})

    async def _find_unloaded(self, request: Request) -> str:
        """Return the name of the request's model, which may be out of service, or known; HTTPNotFound if not."""
        name = _name(request)
        with http_errors():
            is_known = await asyncio.to_thread(self._controller.knows, name)
        if not is_known:
            await self._mention(name)
        return name


@contextmanager
def http_errors(prefix: str = "") -> Iterator[None]:
    """Turn the errors of the controller, of Triton and of the list of adapters into those that Api names."""
    try:
        yield
    except ChangeRefused as exc:
        raise HTTPException(REFUSALS.get(exc.why, 409), f"{exc}\n") from exc
    except OutOfService as exc:
        raise HTTPException(409, f"{exc}; load it to put it back into service\n") from exc
    except ModelLoading as exc:
        raise HTTPException(503, f"{exc}\n", {"Retry-After": str(exc.retry_after_s)}) from exc
    except LoadError as exc:
        raise HTTPException(503, f"{prefix}{exc.reason}: {exc}\n") from exc
    except InferenceServerException as exc:
        raise HTTPException(502, f"Triton: {exc.message()}\n") from exc
    except ServerError as exc:
        raise HTTPException(502, f"{exc}\n") from exc
    except OSError as exc:
        raise HTTPException(500, f"the list of adapters cannot be written: {exc}\n") from exc


async def _changed(change: Future[ChangeOutcome]) -> ChangeOutcome:
    with http_errors():
        return await asyncio.wrap_future(change)


async def _done(change: Callable[..., str], *given: str) -> str:
    """Run a change of an adapter on a thread, and return its result."""
    with http_errors():
        return await asyncio.to_thread(change, *given)


async def _lora_in(request: Request, max_bytes: int) -> tuple[str, str]:
    wanted = 'body: must be JSON such as {"name": "banking", "source": "org/name"}\n'
    try:
        given = json.loads(await small_body(request, max_bytes))
    except (ValueError, RecursionError) as exc:
        raise HTTPException(400, wanted) from exc
    if not isinstance(given, dict) or given.keys() != {"name", "source"} or {*map(type, given.values())} != {str}:
        raise HTTPException(400, wanted)
    return given["name"], given["source"]


def _name(request: Request) -> str:
    return triton_name(request.path_params["model"])


def of_memory(memory: DeviceMemory) -> dict[str, Any]:
    return {
        "used_bytes": memory.used,
        "limit_bytes": memory.limit,
        "source": memory.source,
        "server_bytes": memory.server,
    }


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
        "pending": record["num_open"],
        "pid": record["pid"],
        "worker_pid": record["worker_pid"] or None,
        "waits_for_bytes": record["wanted_bytes"],
        "num_draining": len(model.going),
    }
