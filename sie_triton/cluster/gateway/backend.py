"""The queue as the backend of the door's routes: the same calls, requests and errors as with one Triton."""

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from grpc import StatusCode
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from sie_triton.client import AsyncSIEClient
from sie_triton.client.address import Address
from sie_triton.client.connections import AsyncConnection
from sie_triton.client.failures import our_errors
from sie_triton.client.grpc_aio import InferResult, request_of
from sie_triton.client.retry import Deadline
from sie_triton.cluster.gateway.queue import Queue
from sie_triton.cluster.messages import OK, Answer, Health, unknown_model
from sie_triton.contract import TASKS
from sie_triton.contract.names import sie_name
from sie_triton.doors.backend import MAX_CONCURRENCY, QUESTION_S, Backend, States, tenant, wishes
from sie_triton.settings import Settings, words

# Names of gRPC's status codes by number.
STATUS_NAMES = {code.value[0]: str(code) for code in StatusCode}

ADDRESS = Address.parse("grpc://queue:1")  # names the queue in errors

# Questions that the routes and clients ask: tritonclient's method → the method of Triton's service, and its request.
QUESTIONS: Mapping[str, tuple[str, Callable[..., Any]]] = {
    "get_server_metadata": ("ServerMetadata", lambda: service_pb2.ServerMetadataRequest()),
    "get_model_metadata": ("ModelMetadata", lambda model_name: service_pb2.ModelMetadataRequest(name=model_name)),
    "get_model_config": ("ModelConfig", lambda model_name: service_pb2.ModelConfigRequest(name=model_name)),
}


def raise_failure(answer: Answer) -> None:
    """Raise tritonclient's exception unless the answer is OK."""
    if answer.status != OK:
        raise InferenceServerException(answer.text, status=STATUS_NAMES.get(answer.status, str(StatusCode.INTERNAL)))


class QueueConnection(AsyncConnection):
    """Connection with the interface of tritonclient's, through the queue."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(ADDRESS)
        self._queue = queue

    async def ask(self, method: str, deadline: Deadline, **arguments: Any) -> Any:
        with our_errors(ADDRESS, deadline.left_s):
            return await self._answer(method, deadline, arguments)

    async def _answer(self, method: str, deadline: Deadline, arguments: dict[str, Any]) -> Any:
        queue, pool = self._queue, self._queue.pools.chosen(wishes.get())
        if method == "infer":
            name = arguments["model_name"]
            if not (model := await queue.questions.model_of(pool, name)):
                raise InferenceServerException(unknown_model(name), status=str(StatusCode.NOT_FOUND))
            request = request_of(name, arguments["inputs"], arguments["parameters"], arguments.get("timeout"))
            answer, body = await queue.submit(pool, model, request.SerializeToString(), deadline.left_s, tenant.get())
            raise_failure(answer)
            return InferResult(service_pb2.ModelInferResponse.FromString(body))
        if method == "is_model_ready":
            name, _, task = arguments["model_name"].rpartition("-")
            await queue.questions.model_of(pool, name if task in TASKS else arguments["model_name"])
            return queue.pools.is_served(pool, arguments["model_name"])
        rpc, request_for = QUESTIONS[method]
        seconds = min(QUESTION_S, deadline.left_s)
        answer, body = await queue.questions.ask(pool, rpc, request_for(**arguments).SerializeToString(), seconds)
        raise_failure(answer)
        return getattr(service_pb2, f"{rpc}Response").FromString(body)


class QueueClient(AsyncSIEClient):
    """Client of the models of a cluster."""

    def __init__(self, queue: Queue, **options: Any) -> None:
        self._queue = queue
        super().__init__(str(ADDRESS), controller_url="", **options)

    def _connect(self, address: Address) -> AsyncConnection:
        return QueueConnection(self._queue)

    async def _served(self) -> list[str]:
        return sorted(map(sie_name, self._queue.pools.served(self._queue.pools.chosen(wishes.get())).models))


class QueueBackend(Backend):
    """Answers requests by many Tritons, through the queue."""

    away = "no worker is ready"
    is_beside_server = False

    def __init__(self, settings: Settings, queue: Queue) -> None:
        super().__init__(QueueClient(queue, max_concurrency=MAX_CONCURRENCY, retry=False), QueueConnection(queue))
        self._settings, self._queue = settings, queue
        self.grpc_port = settings.grpc_port

    async def is_live(self) -> bool:
        return self._queue.is_ready

    async def capacity(self) -> dict[str, Any]:
        """Return the workers of all pools, in the format of SIE's clients."""
        workers = sorted(self._queue.pools.workers.all(), key=lambda each: (each.pool, each.worker))
        gpus = sorted({kind for each in workers if (kind := _machine(each))})
        return {
            "type": "gateway",
            "status": ("healthy" if self._queue.is_ready else "degraded") if workers else "no_workers",
            "cluster": {
                "worker_count": len(workers),
                "gpu_count": sum(each.gpu_count for each in workers),
                "models_loaded": sum(len(each.resident) for each in workers),
            },
            "configured_gpu_types": sorted({*gpus, *words(self._settings.gateway_configured_gpus)}),
            "live_gpu_types": gpus,
            "config_epoch": self._queue.model_files.epoch,
            "workers": [
                {
                    "url": "",
                    "name": each.worker,
                    "pool": each.pool,
                    "moves_to": each.moves_to,
                    "machine_profile": each.profile,
                    "gpu": _machine(each),
                    "gpu_count": each.gpu_count,
                    "healthy": each.is_ready,
                    "queue_depth": each.open,
                    "loaded_models": sorted(map(sie_name, each.resident)),
                    "memory_used_bytes": (used := int(sum(size for size, _ in each.resident.values()))),
                    "memory_total_bytes": used + each.free_bytes,
                    "config_epoch": each.epoch,
                    "refused_models": sorted(map(sie_name, each.refused)),
                }
                for each in workers
            ],
        }

    async def states(self) -> States:
        """Return the best state of each model on any worker."""
        models: dict[str, dict[str, Any]] = {}
        for worker in self._queue.pools.workers.all():
            for name in worker.models:
                sizes = [int(worker.resident[name][0])] if name in worker.resident else []
                model = models.setdefault(sie_name(name), {"state": "cold", "memory_bytes": 0, "pending": 0})
                model["state"] = "resident" if sizes else model["state"]
                model["memory_bytes"] += sum(sizes)
                model["traffic"] = {}
        return States({}, models, {}, monotonic())


def _machine(worker: Health) -> str:
    """Return the kind of a worker's machine, by which SIE's clients ask for capacity: its profile, else its GPU."""
    return worker.profile if worker.profile != worker.pool else worker.gpu_type
