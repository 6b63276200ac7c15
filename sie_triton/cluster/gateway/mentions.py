"""Known models through a gateway: a worker begins to serve one once a request names it."""

import asyncio
from time import monotonic

from sie_triton.cluster import subjects
from sie_triton.cluster.gateway.pools import Pools
from sie_triton.cluster.gateway.questions import Questions, model_in
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.messages import SERVE_KNOWN, Answer
from sie_triton.cluster.statuses import NOT_FOUND, OK
from sie_triton.contract import TASKS
from sie_triton.errors import BusyError, ModelLoading, Unreachable


class Mentions:
    """Belongs to one event loop."""

    def __init__(self, pools: Pools, questions: Questions, limits: GatewayLimits = GatewayLimits()) -> None:
        self._pools, self._questions, self._limits = pools, questions, limits
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

    async def ask(self, pool: str, method: str, request: bytes, seconds: float) -> tuple[Answer, bytes]:
        """Return the answer of a worker to a question, which may be about a model that no worker serves yet.

        Raise what model_of and Questions.ask raise, and Unreachable if the workers that serve the model are not ready.
        """
        answer, body = await self._questions.ask(pool, method, request, seconds)
        if answer.status == NOT_FOUND and await self.model_of(pool, model_in(method, request)):
            answer, body = await self._questions.ask(pool, method, request, seconds)
            if answer.status == NOT_FOUND:
                raise Unreachable(f"no worker of pool {pool} has it any more ({answer.text}); retry")
        return answer, body

    async def _is_served_now(self, pool: str, model: str) -> bool:
        """Have the worker with the most free memory serve a model; return False if it does not know it.

        Raise Unreachable if no worker is ready, and ModelLoading if the model is not served yet.
        """
        workers = [each for each in self._pools.workers.alive(pool) if each.is_ready]
        if not workers:
            raise Unreachable(f"no worker of pool {pool} is ready; retry")
        chosen = max(workers, key=lambda each: (each.free_bytes, each.worker))
        subject = subjects.questions_of(pool, chosen.worker)
        answer, _ = await self._questions.ask_at(subject, SERVE_KNOWN, model.encode(), self._limits.serve_s)
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
