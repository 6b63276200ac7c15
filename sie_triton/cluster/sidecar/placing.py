"""Takes and gives up models: this worker's part in the placement of all models on the workers of its pool.

Claims are in a bucket of NATS that all sidecars of a pool read and write:

    token of the model → names of its workers, in JSON

A claim is a preference, not a lock: two workers that both fetch the work of a model do different parts of it.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from time import monotonic

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue

from sie_triton.cluster import subjects
from sie_triton.cluster.bucket import Bucket, Conflict
from sie_triton.cluster.connection import told
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import Health, Malformed, Wanted
from sie_triton.cluster.policies.placement import may_claim, order, should_help
from sie_triton.cluster.sidecar.puller import Puller
from sie_triton.cluster.sidecar.runner import Runner
from sie_triton.cluster.workers import Workers

log = logging.getLogger(__name__)


class Claims:
    """This sidecar's view of the claims of its pool. Belongs to one event loop."""

    def __init__(
        self, opened: Callable[[], Awaitable[KeyValue]], worker: str, limits: SidecarLimits = SidecarLimits()
    ) -> None:
        self._worker = worker
        self.bucket = Bucket(opened, _holders, limits=limits)

    def all(self) -> Mapping[str, Sequence[str]]:
        """Return the workers of each model."""
        return {subjects.model_of(key): holders for key, holders in self.bucket.values.items()}

    def of(self, model: str) -> Sequence[str]:
        return self.bucket.values.get(subjects.escaped(model), ())

    def mine(self) -> list[str]:
        return sorted(model for model, holders in self.all().items() if self._worker in holders)

    async def claim(self, model: str, others: Collection[str]) -> bool:
        """Add this worker to `others`, the present workers of a model; False if another sidecar was faster."""
        return await self._write(model, sorted({*others, self._worker}))

    async def release(self, model: str) -> bool:
        return await self._write(model, [name for name in self.of(model) if name != self._worker])

    async def _write(self, model: str, holders: Sequence[str]) -> bool:
        try:
            await self.bucket.write(subjects.token(model), json.dumps(holders).encode())
        except Conflict:
            return False
        except (NatsError, TimeoutError) as exc:
            log.warning("queue: claim of %s: %s", model, told(exc))
            return False
        return True


def _holders(value: bytes) -> Sequence[str] | None:
    try:
        holders = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return [name for name in holders[:1000] if isinstance(name, str)] if isinstance(holders, list) else None


class Placing:
    """Decides which models' work this sidecar fetches. Belongs to one event loop. `own` is its latest heartbeat."""

    def __init__(
        self,
        client: Client,
        js: JetStreamContext,
        runner: Runner,
        claims: Claims,
        workers: Workers,
        own: Health,
        limits: SidecarLimits = SidecarLimits(),
    ) -> None:
        self._limits = limits
        self._nats, self._js, self._runner, self._claims, self._workers = client, js, runner, claims, workers
        self.own = own
        self.knows_models = False  # those that its Triton serves
        self.pullers: dict[str, Puller] = {}
        self._leaving: list[Puller] = []
        self._wanted: dict[str, float] = {}
        self._at_gateways: dict[str, tuple[float, int]] = {}
        self._sizes: dict[str, int] = {}

    async def want(self, message: Msg) -> None:
        """Take an announcement of a model that no worker serves."""
        with suppress(Malformed):
            wanted, _ = Wanted.read(message.data)
            self._add_wanted(wanted.model)
            if wanted.num_waiting and len(self._at_gateways) < self._limits.max_wanted:
                self._at_gateways[wanted.model] = monotonic(), wanted.num_waiting
            await self._look()

    async def keep_looking(self) -> None:
        """Look at wanted models and at the backlog, for ever."""
        await self._claims.bucket.are_known.wait()
        looked_at = 0.0
        while True:
            try:
                if monotonic() - looked_at >= self._limits.backlog_s:
                    looked_at = monotonic()
                    await self._find_orphans()
                await self._look()
                await self._follow_claims()
            except (NatsError, TimeoutError) as exc:
                log.debug("queue: %s", exc)
            except Exception:
                log.exception("placing: one look failed")
            await asyncio.sleep(self._limits.placing_look_s)

    async def pull_all(self) -> None:
        for puller in [*self.pullers.values()]:
            await puller.pull()

    async def ask_again(self) -> None:
        for puller in [*self.pullers.values()]:
            await puller.ask_again()

    async def release_all(self) -> None:
        """Give up all models: this sidecar ends."""
        for puller in self.pullers.values():
            puller.leave()
        for model in self._claims.mine():
            await self._claims.release(model)

    async def close(self) -> None:
        for puller in (*self.pullers.values(), *self._leaving):
            await puller.close()

    def _add_wanted(self, model: str) -> None:
        if model in self.own.models and len(self._wanted) < self._limits.max_wanted:
            self._wanted.setdefault(model, monotonic())

    def _holders(self, model: str, alive: Mapping[str, Health]) -> list[str]:
        return [name for name in self._claims.of(model) if name in alive and alive[name].is_ready]

    def _claimed(self) -> dict[str, list[str]]:
        """Return the models that each worker has claimed."""
        claimed: dict[str, list[str]] = {}
        for model, holders in self._claims.all().items():
            for name in holders:
                claimed.setdefault(name, []).append(model)
        return claimed

    def _alive(self) -> dict[str, Health]:
        return {each.worker: each for each in (*self._workers.alive(self.own.pool), self.own)}

    async def _look(self) -> None:
        """Claim wanted models whose turn has come for this worker."""
        if not self._wanted or self._runner.is_draining or not self._claims.bucket.are_known.is_set():
            return
        alive = self._alive()
        for model, since in [*self._wanted.items()]:
            if self._holders(model, alive):
                self._wanted.pop(model, None)
                continue
            preferred = order(model, self._size(model), [*alive.values()], self._claimed())
            if may_claim(self.own.worker, preferred, monotonic() - since) and await self._claims.claim(model, ()):
                log.info("claimed %s", model)
                self._wanted.pop(model, None)
                await self._fetch(model)

    async def _find_orphans(self) -> None:
        """Look for requests whose announcement was lost, whose workers are gone, or too slow for them."""
        pool = self.own.pool
        info = await self._js.stream_info(subjects.stream(pool), subjects_filter=subjects.all_work(pool))
        alive = self._alive()
        since = monotonic() - self._limits.news_s
        self._at_gateways = {model: told for model, told in self._at_gateways.items() if told[0] >= since}
        for subject, in_stream in (info.state.subjects or {}).items():
            model = subjects.model_of(subject.rpartition(".")[2])
            num = in_stream + self._at_gateways.get(model, (0.0, 0))[1]
            if not (holders := self._holders(model, alive)):
                self._add_wanted(model)
            elif should_help(self.own, holders, num, [*alive.values()]):
                others = [each for each in alive.values() if each.worker not in holders and each.open * 4 <= each.limit]
                preferred = order(model, self._size(model), others, self._claimed())
                if preferred[:1] == [self.own.worker] and await self._claims.claim(model, holders):
                    log.info("helps with %s: %d requests wait", model, num)
                    await self._fetch(model)

    async def _follow_claims(self) -> None:
        """Fetch the work of claimed models, give up unused ones, and end what has been given up."""
        if self._runner.is_draining:
            return
        mine = self._claims.mine()
        for model in mine:
            await self._fetch(model)
        for model, puller in [*self.pullers.items()]:
            is_unused = model not in self.own.resident and puller.idle_s > self._limits.unused_s
            is_gone = self.knows_models and model not in self.own.models
            # Another worker may have claimed the model while this Triton was away.
            if model not in mine or ((is_unused or is_gone) and await self._claims.release(model)):
                log.info("gave up %s", model)
                puller.leave()
                self.pullers.pop(model, None)
                self._leaving.append(puller)
        have_left = [puller for puller in self._leaving if puller.has_left]
        self._leaving = [puller for puller in self._leaving if puller not in have_left]
        for puller in have_left:
            await puller.close()
        await self.pull_all()

    async def _fetch(self, model: str) -> None:
        """Fetch the work of a model. If its consumer cannot be made now, the next look tries again."""
        if model in self.pullers:
            return
        for puller in self._leaving:
            if puller.model == model:
                self._leaving.remove(puller)
                puller.stay()
                self.pullers[model] = puller
                await puller.pull()
                return
        # Registered first, so that a second call meanwhile starts no second one.
        puller = self.pullers[model] = Puller(self._nats, self._js, self.own.pool, model, self._runner, self._limits)
        try:
            await puller.start()
        except (NatsError, TimeoutError) as exc:
            log.warning("queue: %s: %s", model, told(exc))
            self.pullers.pop(model, None)

    def _size(self, model: str) -> int:
        """Return the bytes that a model takes: the last known size on any worker, or that of a middling model."""
        for each in self._workers.alive(self.own.pool):
            if model in each.resident:
                self._sizes[model] = int(each.resident[model][0])
        if model in self._sizes:
            return self._sizes[model]
        known = sorted(self._sizes.values())
        return known[len(known) // 2] if known else 0
