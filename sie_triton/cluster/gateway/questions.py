"""The model that a request names, and calls of Triton other than inference; any worker can answer these.

Workers answer without the stream: what is lost is asked again. A worker begins to serve a known model once a request
names it.
"""

import asyncio
import re
from contextlib import suppress
from itertools import count
from time import monotonic
from zlib import crc32

from google.protobuf.message import DecodeError
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from tritonclient.grpc import service_pb2

from sie_triton.client.calls import STEP_SUFFIXES
from sie_triton.cluster import subjects
from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.messages import NOT_FOUND, OK, SERVE_KNOWN, UNAVAILABLE, Answer, Malformed, Question
from sie_triton.contract import TASKS
from sie_triton.errors import BusyError, InputError, ModelLoading, Unreachable
from sie_triton.records.revisions import MARK

# Questions about a model, whose requests begin with its name.
OF_MODELS = ("ModelMetadata", "ModelConfig")

# End of a step's name (records/revisions.py).
STEP = re.compile(rf"({MARK}\d+)?({'|'.join(STEP_SUFFIXES)})$")


class Questions:
    """Asks the workers of a pool. Belongs to one event loop. Raises Unreachable if none answers in time."""

    def __init__(self, client: Client, pools: Pools, limits: GatewayLimits = GatewayLimits()) -> None:
        self._nats, self._pools, self._limits = client, pools, limits
        self._asking: dict[tuple[str, str], asyncio.Task[bool]] = {}
        self._unknown: dict[tuple[str, str], float] = {}

    async def model_of(self, pool: str, ensemble: str) -> str:
        """Return the model of an ensemble, empty if no worker of the pool serves or knows it.

        Raise ModelLoading if a worker will serve it, but not yet, Unreachable if no worker is ready, BusyError if too
        many models are asked for, and what Pools.model_of raises.
        """
        if model := self._pools.model_of(pool, ensemble):
            return model
        if not subjects.MODEL.fullmatch(ensemble):
            return ""
        name, _, task = ensemble.rpartition("-")
        mentioned = pool, name if task in TASKS else ensemble
        if self._pools.is_removed(*mentioned):
            return ""
        if monotonic() - self._unknown.get(mentioned, float("-inf")) < self._limits.unknown_s:
            return ""
        if mentioned not in self._asking:
            if len(self._asking) >= self._limits.max_mentions:
                raise BusyError(f"{len(self._asking)} other known models wait to be served; retry")
            asking = self._asking[mentioned] = asyncio.create_task(self._is_served_now(*mentioned))
            asking.add_done_callback(lambda _: self._asking.pop(mentioned, None))
        # One client that leaves must not end the question of the others.
        if await asyncio.shield(self._asking[mentioned]):
            return self._pools.model_of(pool, ensemble)
        return ""

    async def _is_served_now(self, pool: str, model: str) -> bool:
        """Have the worker with the most free memory serve a model; return False if it does not know it.

        Raise Unreachable if no worker is ready, and ModelLoading if the model is not served yet.
        """
        workers = [each for each in self._pools.workers.alive(pool) if each.is_ready]
        if not workers:
            raise Unreachable(f"no worker of pool {pool} is ready; retry")
        chosen = max(workers, key=lambda each: (each.free_bytes, each.worker))
        subject, message = subjects.questions_of(pool, chosen.worker), _message(SERVE_KNOWN, model.encode())
        try:
            answered = await self._nats.request(subject, message, timeout=self._limits.serve_s)
            answer, _ = Answer.read(answered.data)
        except (NatsError, TimeoutError, Malformed) as exc:
            raise Unreachable(f"the worker does not answer ({type(exc).__name__}); retry") from exc
        if answer.status == NOT_FOUND:
            if len(self._unknown) >= 1000:
                self._unknown.clear()
            self._unknown[pool, model] = monotonic()
            return False
        if answer.status != OK:
            raise ModelLoading(answer.text[:500])
        heartbeat_s = self._limits.served_heartbeat_s
        until = monotonic() + heartbeat_s
        while not self._pools.is_served(pool, model):
            if monotonic() >= until:
                raise ModelLoading(f"{model} was not in service after {heartbeat_s:g} s; retry")
            await asyncio.sleep(0.05)
        return True

    async def ask(self, pool: str, method: str, request: bytes, seconds: float) -> tuple[Answer, bytes]:
        """Return the answer of a worker to a question, which may be about a model that no worker serves yet.

        Raise what model_of raises, and Unreachable if the workers that serve the model are not ready.
        """
        answer, body = await self._ask(pool, method, request, seconds)
        if answer.status == NOT_FOUND and await self.model_of(pool, model_in(method, request)):
            answer, body = await self._ask(pool, method, request, seconds)
            if answer.status == NOT_FOUND:
                raise Unreachable(f"no worker of pool {pool} has it any more ({answer.text}); retry")
        return answer, body

    async def _ask(self, pool: str, method: str, request: bytes, left_s: float) -> tuple[Answer, bytes]:
        """Return the answer of any worker whose Triton is there."""
        message, ends_at, failure = _message(method, request), monotonic() + left_s, ""
        for attempt in count():
            if (seconds := min(self._limits.question_try_s, ends_at - monotonic())) <= 0:
                break
            subject = self._subject(pool, model_in(method, request), attempt)
            try:
                answered = await self._nats.request(subject, message, timeout=seconds)
                answer, body = Answer.read(answered.data)
                if answer.status != UNAVAILABLE:
                    return answer, body
                failure = answer.text
            except (NatsError, TimeoutError, Malformed) as exc:
                if isinstance(exc, NoRespondersError) and subject == subjects.questions(pool):
                    raise Unreachable(f"no worker of pool {pool} is there; retry") from exc
                failure = type(exc).__name__
            await asyncio.sleep(0.25)
        raise Unreachable(f"no worker of pool {pool} answers ({failure[:200]}); retry")

    def _subject(self, pool: str, model: str, attempt: int) -> str:
        """Return the subject of a question: that of any worker, or, about a model, of one that serves it.

        Workers may differ in the names of a model's steps, so the first attempts of all questions about a model ask the
        same worker.
        """
        ready = [each for each in self._pools.workers.alive(pool) if each.is_ready]
        if serving := [each.worker for each in ready if model in each.models or model in each.ensembles]:
            return subjects.questions_of(pool, serving[(crc32(model.encode()) + attempt) % len(serving)])
        return subjects.questions(pool)

    async def ask_all(self, pool: str, method: str, request: bytes, left_s: float) -> list[tuple[Answer, bytes]]:
        """Return the answers of all ready workers; those that do not answer are left out."""
        message = _message(method, request)
        ready = [each.worker for each in self._pools.workers.alive(pool) if each.is_ready][:1000]
        asking = (self._nats.request(subjects.questions_of(pool, name), message, timeout=left_s) for name in ready)
        found = []
        for each in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(each, Msg):
                with suppress(Malformed):
                    found.append(Answer.read(each.data))
        if not found:
            raise Unreachable(f"no worker of pool {pool} answers; retry")
        return found


def model_in(method: str, request: bytes) -> str:
    """Return the model that a question, or a question about a step, is about; empty if there is none.

    >>> model_in("ModelConfig", service_pb2.ModelConfigRequest(name="org__name@2-preprocess").SerializeToString())
    'org__name'
    """
    with suppress(DecodeError):
        name = service_pb2.ModelMetadataRequest.FromString(request).name if method in OF_MODELS else ""
        return STEP.sub("", name)
    return ""


def check_size(method: str, request: bytes, max_bytes: int = 64 * 1024) -> None:
    """Raise InputError for a request that is too large to be parsed: one with a model's name is far smaller."""
    if len(request) > max_bytes:
        raise InputError(f"a request of {method} has {len(request)} bytes; at most {max_bytes} are allowed")


def _message(method: str, request: bytes) -> bytes:
    check_size(method, request)
    return Question(method).packed(request)
