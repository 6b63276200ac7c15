"""A sidecar: it fetches the requests of its pool that its Triton can do now, and answers their gateways."""

import asyncio
import logging
import re
import socket
import time
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from time import monotonic
from typing import Any

from aiohttp import ClientError
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.kv import KeyValue
from prometheus_client import generate_latest

from sie_triton.client.calls import STEP_SUFFIXES
from sie_triton.cluster import subjects
from sie_triton.cluster.bucket import Bucket
from sie_triton.cluster.connection import OwnJetStream, await_streams, connect, listen, told
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import (
    NOT_FOUND,
    OK,
    SERVE_KNOWN,
    UNAVAILABLE,
    Answer,
    Health,
    Malformed,
    Question,
    read_lease,
)
from sie_triton.cluster.model_files import reader
from sie_triton.cluster.permissions import GATEWAY, SIDECAR, inbox
from sie_triton.cluster.policies.leases import best_pool
from sie_triton.cluster.policies.placement import free_bytes
from sie_triton.cluster.sidecar.metrics import CLAIMS, EPOCH, LIMIT, OPEN, REGISTRY
from sie_triton.cluster.sidecar.model_files import ModelFiles
from sie_triton.cluster.sidecar.placing import Claims, Placing
from sie_triton.cluster.sidecar.runner import Runner
from sie_triton.cluster.sidecar.server import LocalServer, Response
from sie_triton.cluster.tasks import Tasks, restarted_forever
from sie_triton.cluster.workers import Workers
from sie_triton.contract import TASKS
from sie_triton.contract.names import triton_name
from sie_triton.errors import InputError
from sie_triton.records.calls import CallBook
from sie_triton.settings import Settings, words
from sie_triton.system.processes.supervisor import beat

log = logging.getLogger(__name__)

# Methods that gateways may ask of this worker's Triton: none changes it.
ASKED = ("ServerMetadata", "ModelMetadata", "ModelConfig", "ModelStatistics")


class Sidecar:
    """Composes the parts of a sidecar, as a context manager. Belongs to one event loop.

    `server` outlives it. `pool` is that of its work, by default the worker's own. `should_move` is set once it should
    be in another pool, `best_pool`: drain it, and start one there. `has_lost_queue` is set if the queue refuses it for
    good.
    """

    def __init__(
        self, settings: Settings, server: LocalServer, pool: str = "", limits: SidecarLimits = SidecarLimits()
    ) -> None:
        self._settings, self._server, self._limits = settings, server, limits
        self._home, self._pool = settings.pool, pool or settings.pool
        self.name = subjects.checked_name(
            settings.worker_id or re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:64], "SIE_WORKER_ID"
        )
        self._interval_s = settings.health_publish_interval_ms / 1000
        self._workers = Workers(limits)
        self._lived_at = monotonic()  # the time of the latest heartbeat
        self.has_lost_queue = asyncio.Event()
        self.should_move = asyncio.Event()
        self.best_pool = self._pool
        self._is_closing = False
        self._is_ready = False
        self._has_looked = False  # Triton's models are known
        self._names: list[str] = []
        # By the latest look: models, ensembles of tasks, sizes and ages of resident models, free bytes.
        self._found: tuple[list[str], list[str], dict[str, tuple[float, float]], int] = [], [], {}, 0
        self._num_gpus = int(bool(settings.gpu_type))
        self._named_at = 0.0
        self._tasks = Tasks()
        self._streams: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Sidecar":
        limits, settings = self._limits, self._settings
        self._nats = await connect(settings, SIDECAR, self.name, self._reconnected, self._closed, limits)
        self._js = OwnJetStream(self._nats, timeout=limits.queue_s)
        self._claims = Claims(self._bucket, self.name, limits)
        self._runner = Runner(self._nats, self._js, self._server, settings, self.name, limits)
        poll_s = settings.worker_config_poll_interval_ms / 1000
        look_s = settings.worker_config_full_export_interval_ms / 1000
        read = reader(words(settings.nats_config_trusted_producers))
        files = Bucket(partial(self._js.key_value, subjects.MODEL_FILES), read, poll_s=poll_s, limits=limits)
        self._files = ModelFiles(files, self._server.models, self._home, look_s, limits)
        self._files.when_applied = self._look_at_names_soon
        self._leases = Bucket(partial(self._js.key_value, subjects.LEASES), read_lease, limits=limits)
        self._placing = Placing(self._nats, self._js, self._runner, self._claims, self._workers, self._health(), limits)
        await self._open()
        await self._runner.receipts.give_back(self._nats, limits)
        self._runner.when_free = lambda: self._tasks.start(self._placing.pull_all())
        for subject, callback in (
            (subjects.ALL_WORKERS if self._may_move else subjects.worker_health(self._pool, "*"), self._workers.hear),
            (subjects.ALL_GATEWAYS, self._runner.gateways.hear_gateway),
            (subjects.cancelled(self._pool), self._runner.withdraw),
            (subjects.wanted(self._pool), self._placing.want),
        ):
            await listen(self._nats, subject, callback)
        await listen(self._nats, subjects.questions(self._pool), self._answer_question, "workers")
        await listen(self._nats, subjects.questions_of(self._pool, self.name), self._answer_question)
        parts = [self._live, self._runner.report, self._claims.bucket.watch, self._placing.keep_looking]
        parts += [self._files.watch, self._files.keep]
        for work in [*parts, self._leases.watch] if self._may_move else parts:
            self._tasks.start(restarted_forever(work, limits.restart_s))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closing = True
        self._tasks.cancel()
        await self._runner.close()
        with suppress(NatsError, TimeoutError):
            await self._nats.flush(1)
        await self._nats.close()

    @property
    def is_alive(self) -> bool:
        """False if no heartbeat has been made for long, so that the sidecar has to be started anew."""
        return monotonic() - self._lived_at < max(self._limits.alive_s, 3 * self._interval_s)

    @property
    def is_ready(self) -> bool:
        is_connected = bool(self._nats.is_connected)
        return self._is_ready and self._has_looked and is_connected and not self._runner.is_draining

    async def metrics(self) -> bytes:
        """Return the metrics of this sidecar and of the server beside it, in Prometheus' text format."""
        return generate_latest(REGISTRY) + await self._server.metrics()

    async def _open(self) -> None:
        """Open stream and claims, until that succeeds."""
        while True:
            try:
                return await self._claims.bucket.open()
            except TimeoutError:  # await_streams logs the reason
                pass
            except NatsError as exc:
                log.warning("queue: no stream yet: %s", told(exc))
            await asyncio.sleep(1.0)

    async def _closed(self) -> None:
        if not self._is_closing:
            log.error("the queue refuses this sidecar; it ends, to be started anew")
            self.has_lost_queue.set()

    async def _bucket(self) -> KeyValue:
        if self._streams is None or self._streams.done():  # it logs the reason only after a while
            self._streams = self._tasks.start(await_streams(self._nats, self._js, self._pool, self._limits))
        async with asyncio.timeout(self._limits.queue_s):
            await asyncio.shield(self._streams)
        return await self._js.key_value(subjects.claims(self._pool))

    @property
    def _may_move(self) -> bool:
        return self._settings.pool_admission_enabled

    async def _reconnected(self) -> None:
        log.info("the queue is back")
        self._runner.gateways.forget_silence()
        self._claims.bucket.doubt()
        self._files.doubt()
        self._leases.doubt()
        self._tasks.start(self._placing.ask_again())

    async def drain(self) -> None:
        """Fetch no more, return what arrives, and finish what is in progress."""
        log.info("draining: %d requests in progress", self._runner.num_open)
        self._runner.is_draining = True
        with suppress(NatsError, TimeoutError):
            await self._publish_health()
            await asyncio.wait_for(self._placing.release_all(), 1.0)
        await self._runner.drained(self._limits.drain_s)
        await self._placing.close()

    async def _live(self) -> None:
        """Look at Triton and its controller, and publish the heartbeat, for ever.

        On full cores a look may take longer than the time after which a silent worker counts as gone. The heartbeat
        then tells what the look before it has found.
        """
        looking = self._tasks.start(self._look())
        while True:
            beat()
            if not self._server.calls.is_there:
                self._server.calls = CallBook(self._settings.status_dir)
            await asyncio.wait({looking}, timeout=self._interval_s)
            self._look_at_leases()
            with suppress(NatsError, TimeoutError):
                await self._publish_health()
            self._lived_at = monotonic()
            if looking.done():
                await asyncio.sleep(self._interval_s)
                looking = self._tasks.start(self._look())

    def _look_at_leases(self) -> None:
        """Find out in which pool this worker should be. On its way to another one it does not turn back."""
        is_known = self._leases.are_known.is_set()
        if not is_known or self.should_move.is_set() or not self.is_ready:
            return
        leases, own = self._leases.values.values(), self._health()
        self.best_pool = best_pool(own, self._home, leases, self._workers.all(), time.time(), self._limits.lease_ttl_s)
        if self.best_pool != self._pool:
            log.info("moves from pool %s to %s", self._pool, self.best_pool)
            self.should_move.set()

    async def _look(self) -> None:
        """Look at Triton's models, and at their states. If the controller does not answer, what was known stays.

        A model that is being added is left out until Triton serves all its ensembles.
        """
        incomplete = self._files.adding - set(self._placing.own.models)
        self._is_ready = self._runner.is_able = await self._server.triton.is_ready()
        if self._is_ready and (monotonic() - self._named_at >= self._limits.names_s or not self._names):
            self._named_at = monotonic()  # of the question: a change meanwhile asks for another look
            self._names = await self._server.triton.names() or self._names  # an empty answer is none: Triton is busy
        states = await self._server.states()
        if not states.models:
            return
        found = {triton_name(name): state for name, state in states.models.items()}
        resident = {
            name: (state["memory_bytes"], state["idle_s"] or 0.0)
            for name, state in found.items()
            if state["state"] == "resident"
        }
        self._num_gpus = len(states.gpus) or self._num_gpus
        free = free_bytes(states.memory, self._settings.memory_pressure_threshold_percent / 100)
        of_tasks = [name for name in self._names if _is_of_task(name, found)]
        served = (name for name in self._names if name in found and not name.endswith(STEP_SUFFIXES))
        models = [name for name in served if name not in incomplete]
        self._has_looked = self._placing.knows_models = self._has_looked or bool(self._names)
        self._found = sorted(models), sorted(of_tasks), resident, free
        self._placing.own = self._health()

    async def _publish_health(self) -> None:
        own = self._placing.own = self._health()
        OPEN.set(own.open)
        EPOCH.set(own.epoch)
        LIMIT.set(own.limit)
        CLAIMS.set(len(own.claims))
        await self._nats.publish(subjects.worker_health(self._pool, self.name), own.packed())

    def _health(self) -> Health:
        runner: Runner = self._runner
        return Health(
            self.name,
            self._pool,
            self._settings.machine_profile or self._home,
            self.is_ready,
            *self._found,
            runner.num_open,
            runner.pace.quantum.limit,
            self._claims.mine(),
            self._settings.gpu_type,
            self._files.epoch,
            self._files.refused,
            self.best_pool if self.should_move.is_set() else "",
            self._interval_s,
            self._num_gpus if self._settings.gpu_count is None else self._settings.gpu_count,
        )

    async def _answer_question(self, message: Msg) -> None:
        self._tasks.start(self._answered_question(message))

    async def _answered_question(self, message: Msg) -> None:
        try:
            question, body = Question.read(message.data)
        except Malformed:
            return
        if not message.reply.startswith(f"{inbox(GATEWAY)}."):  # a sidecar may publish where gateways may not
            return
        if question.method == SERVE_KNOWN:
            response = await self._served_known(body)
        elif question.method in ASKED:
            response = await self._server.triton.call(question.method, body, self._limits.question_s)
        else:
            return
        answer = Answer(0, self.name, response.status, response.text)
        with suppress(NatsError):
            await self._nats.publish(message.reply, answer.packed(response.body))

    def _look_at_names_soon(self) -> None:
        """Have the next heartbeat tell of models that have come or gone."""
        self._named_at = float("-inf")

    async def _served_known(self, body: bytes) -> Response:
        """Have the server serve a known model, and tell the gateways at once that it does."""
        try:
            model = subjects.model_of(subjects.token(body.decode()))
            with self._files.adds(model):
                status, text = await self._server.models.serve_known(model)
        except (InputError, UnicodeDecodeError) as exc:
            return Response(NOT_FOUND, str(exc), b"")
        except (ClientError, OSError) as exc:  # TimeoutError is one
            has_controller = await asyncio.to_thread(self._server.models.found) is not None
            away = Response(UNAVAILABLE, "the controller does not answer; retry", b"")
            return away if has_controller else Response(NOT_FOUND, str(exc), b"")
        if status == HTTPStatus.OK:
            self._look_at_names_soon()
            with suppress(NatsError, TimeoutError):
                await self._look()
                await self._publish_health()
            return Response(OK, "", b"")
        return Response(NOT_FOUND if status == HTTPStatus.NOT_FOUND else UNAVAILABLE, text, b"")


def _is_of_task(name: str, models: dict[str, Any]) -> bool:
    model, _, task = name.rpartition("-")
    return task in TASKS and model in models and name not in models
