"""Our rules: a gateway with turns, a stream with a line for each model, and sidecars that claim models.

arrive → gate → stream → sidecar → answer

The policies are the production ones. Heartbeats are up to a second old, claims and announcements travel at once.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

from benchmarks.simulation.clock import Action, Clock
from benchmarks.simulation.load import Outcome, Request
from benchmarks.simulation.machines import Machine
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.rules import Book
from benchmarks.simulation.scaling import Demand
from benchmarks.simulation.sidecar import Sidecar
from sie_triton.cluster.limits import GatewayLimits, SidecarLimits
from sie_triton.cluster.messages import Health
from sie_triton.cluster.policies.fair import Durations, Turns, window
from sie_triton.cluster.policies.placement import may_claim, order, should_help
from sie_triton.cluster.policies.quantum import FIRST_OPEN
from sie_triton.controller.choice import Resident, victims

OF_GATEWAY, OF_SIDECAR = GatewayLimits(), SidecarLimits()

# Bytes of a request; all are of the same size.
SIZE = 1

# Times that differ by less are the same, in seconds.
SAME_S = 1e-6


class _Line:
    """Requests for one model at the gateway, and how many of them may be in the queue."""

    def __init__(self) -> None:
        self.turns = Turns[Request]()
        self.durations = Durations(OF_GATEWAY.max_rated, OF_GATEWAY.min_rated)
        self.limit, self.limit_at = 0, float("-inf")


class Ours:
    """`sizes` has the bytes of each model."""

    def __init__(
        self,
        clock: Clock,
        parameters: Parameters,
        sizes: Mapping[str, int],
        book: Book,
    ) -> None:
        self._clock, self._parameters, self._sizes, self._book = clock, parameters, sizes, book
        self._names = list(sizes)
        self._sidecars: dict[str, Sidecar] = {}
        self._lines: defaultdict[str, _Line] = defaultdict(_Line)
        self._at_gate: dict[Request, None] = {}
        self._of_tenants: defaultdict[str, int] = defaultdict(int)
        self._streams: defaultdict[str, deque[Request]] = defaultdict(deque)
        self._asking: defaultdict[str, dict[Sidecar, None]] = defaultdict(dict)
        self._holders: defaultdict[str, dict[Sidecar, None]] = defaultdict(dict)
        self._at: dict[Request, Sidecar] = {}
        self._wanted: dict[str, float] = {}
        self._helped: set[str] = set()
        self._largest_limit, self._largest_at = FIRST_OPEN, float("-inf")
        self._heard: Sequence[Health] = ()
        self._heard_at = float("-inf")
        clock.each(OF_SIDECAR.backlog_s, self._look_at_backlog)
        clock.each(OF_SIDECAR.backlog_s, self._give_up)

    def choose(self, machine: Machine, num_bytes: int) -> Sequence[str]:
        residents = [
            Resident(name, each.num_bytes, int(each.used_at * 1e9), int(each.since * 1e9), machine.is_busy(name))
            for name, each in machine.resident.items()
            if not each.is_leaving
        ]
        now_ns, least_ns = int(self._clock.now * 1e9), int(self._parameters.min_residency_s * 1e9)
        return victims(residents, num_bytes, now_ns=now_ns, min_residency_ns=least_ns)

    def demand(self) -> Demand:
        return self._book.demand(len(self._at_gate) + sum(line.turns.num_sent for line in self._lines.values()))

    # --- the gateway

    def arrive(self, request: Request) -> None:
        if all(each.is_draining for each in self._sidecars.values()):
            self._book.find_no_worker(request, self.arrive)
            return
        line = self._lines[request.model]
        request.num_ahead = line.turns.num_sent + line.turns.ahead(request.tenant)
        if line.durations.expected_s(request.num_ahead, SIZE) > request.ends_at - self._clock.now:
            self._book.end(request, Outcome.REFUSED)
            return
        if line.turns.may_enter(request.tenant, self._window(request.model, line), OF_GATEWAY.min_of_tenant):
            self._send(request, line)
            return
        of_tenant = self._of_tenants[request.tenant]
        if len(self._at_gate) >= OF_GATEWAY.max_waiting or of_tenant >= OF_GATEWAY.max_waiting_of_tenant:
            self._book.end(request, Outcome.REFUSED)
            return
        line.turns.add(request.tenant, request)
        self._at_gate[request] = None
        self._of_tenants[request.tenant] += 1

    def expire(self, request: Request) -> None:
        line = self._lines[request.model]
        line.durations.add(request.num_ahead, SIZE, self._took_s(request))
        if request in self._at_gate:
            self._leave_gate(request)
            line.turns.remove(request.tenant, request)
            return
        if (sidecar := self._at.pop(request, None)) is not None:
            sidecar.withdraw(request)
        line.turns.leave(request.tenant)
        self._let_in(request.model, line)

    def _window(self, model: str, line: _Line) -> int:
        """Return how many requests for a model may be in the queue, as of a moment ago at most."""
        now = self._clock.now
        if now - line.limit_at >= OF_GATEWAY.served_age_s:
            holders = self._holders[model]
            line.limit = sum(each.quantum.limit for each in holders) if holders else self._largest()
            line.limit_at = now
        return window(line.limit, num_gateways=1)

    def _largest(self) -> int:
        now = self._clock.now
        if now - self._largest_at >= OF_GATEWAY.served_age_s:
            self._largest_limit = max((each.quantum.limit for each in self._sidecars.values()), default=FIRST_OPEN)
            self._largest_at = now
        return self._largest_limit

    def _let_in(self, model: str, line: _Line) -> None:
        while line.turns and line.turns.num_sent < self._window(model, line):
            request = line.turns.take()
            self._leave_gate(request)
            self._send(request, line)
        if not line.turns and not line.turns.num_sent:
            self._lines.pop(model, None)

    def _took_s(self, request: Request) -> float:
        """Return the time since a request came to the gateway, in seconds."""
        return self._parameters.deadline_s - (request.ends_at - self._clock.now)

    def _leave_gate(self, request: Request) -> None:
        del self._at_gate[request]
        self._of_tenants[request.tenant] -= 1

    def _send(self, request: Request, line: _Line) -> None:
        line.turns.enter(request.tenant)
        self._pass(lambda: self._enter(request))

    def _answer(self, request: Request) -> None:
        if request.outcome is not None:
            return
        self._book.end(request, Outcome.ANSWERED)
        line = self._lines[request.model]
        line.turns.leave(request.tenant)
        line.durations.add(request.num_ahead, SIZE, self._took_s(request))
        self._let_in(request.model, line)

    def _pass(self, then: Action) -> None:
        self._clock.after(self._parameters.queue_s / 2, then)

    # --- the stream

    def _enter(self, request: Request) -> None:
        if request.outcome is None:
            self._streams[request.model].append(request)
            if not self._holders[request.model]:
                self._want(request.model)
            self._deliver(request.model)

    def _deliver(self, model: str) -> None:
        """Give the requests of a model to the sidecars that ask for them, one after another."""
        stream, asking = self._streams[model], self._asking[model]
        while stream and asking:
            if stream[0].outcome is not None:
                stream.popleft()
                continue
            sidecar = next(iter(asking))
            del asking[sidecar]
            if not sidecar.room:
                continue
            request = stream.popleft()
            self._at[request] = sidecar
            sidecar.start(request)
            if sidecar.room:
                asking[sidecar] = None

    def _ask(self, sidecar: Sidecar) -> None:
        """Let a sidecar ask for the work of its models."""
        for model in [*sidecar.claims]:
            if not sidecar.room:
                return
            self._asking[model][sidecar] = None
            if self._streams[model]:
                self._deliver(model)

    def _conclude(self, request: Request) -> None:
        self._at.pop(request, None)
        self._pass(lambda: self._answer(request))

    # --- machines

    def join(self, machine: Machine) -> None:
        self._sidecars[machine.name] = Sidecar(machine, self._names, self._parameters, self._conclude, self._ask)

    def drain(self, machine: Machine, when_idle: Callable[[], object]) -> None:
        sidecar = self._sidecars[machine.name]
        sidecar.is_draining = True
        self._release(sidecar, [*sidecar.claims])
        self._when_drained(sidecar, when_idle)

    def _when_drained(self, sidecar: Sidecar, when_idle: Callable[[], object]) -> None:
        if sidecar.open:
            self._clock.after(OF_SIDECAR.placing_look_s, self._when_drained, sidecar, when_idle)
        else:
            self._sidecars.pop(sidecar.name, None)
            when_idle()

    def lose(self, machine: Machine) -> None:
        """Give its requests to others once the queue has had no word of them; its claims end with its heartbeats."""
        sidecar = self._sidecars[machine.name]
        for request in sidecar.open:
            self._at.pop(request, None)
        self._clock.after(OF_SIDECAR.ack_wait_s, self._return, [*sidecar.open])
        self._clock.after(OF_SIDECAR.heartbeat_s * OF_SIDECAR.max_missing_heartbeats, self._forget, sidecar)

    def _return(self, requests: Sequence[Request]) -> None:
        for request in reversed(requests):
            if request.outcome is None:
                self._streams[request.model].appendleft(request)
        for model in dict.fromkeys(request.model for request in requests):
            self._deliver(model)

    def _forget(self, sidecar: Sidecar) -> None:
        self._sidecars.pop(sidecar.name, None)
        self._release(sidecar, [*sidecar.claims])

    # --- placement

    def _want(self, model: str) -> None:
        if model not in self._wanted:
            self._wanted[model] = self._clock.now
            self._look(model)

    def _look(self, model: str) -> None:
        """Let the sidecar claim a wanted model whose turn it is."""
        if self._holders[model]:
            self._wanted.pop(model, None)
            return
        waited_s = self._clock.now - self._wanted[model]
        preferred = order(model, self._sizes[model], self._healths(), self._claimed())
        for name in preferred:
            sidecar = self._sidecars.get(name)
            if sidecar is not None and sidecar.can_claim and may_claim(name, preferred, waited_s):
                self._wanted.pop(model, None)
                self._claim(sidecar, model)
                return
        self._clock.after(OF_SIDECAR.placing_look_s, self._look, model)

    def _claim(self, sidecar: Sidecar, model: str) -> None:
        self._holders[model][sidecar] = None
        sidecar.claims[model] = self._clock.now
        self._ask(sidecar)

    def _release(self, sidecar: Sidecar, models: Sequence[str]) -> None:
        for model in models:
            sidecar.claims.pop(model, None)
            self._holders[model].pop(sidecar, None)
            self._asking[model].pop(sidecar, None)

    def _give_up(self) -> None:
        """Release the models that have neither memory nor work."""
        for sidecar in self._sidecars.values():
            unused = [
                name
                for name in sidecar.claims
                if sidecar.idle_s(name) > OF_SIDECAR.unused_s and not sidecar.machine.has(name)
            ]
            self._release(sidecar, [name for name in unused if name not in sidecar.machine.loading])

    def _look_at_backlog(self) -> None:
        for model, stream in self._streams.items():
            if stream and not self._holders[model]:
                self._want(model)
            elif stream and model not in self._helped:
                self._look_for_help(model)

    def _look_for_help(self, model: str) -> None:
        """Find the sidecar that would help with a model, which does so at its own next look at the backlog."""
        if (helper := self._helper(model)) is None:
            self._helped.discard(model)
        else:
            self._helped.add(model)
            backlog_s = OF_SIDECAR.backlog_s
            left_s = (hash_of(helper.name) * backlog_s - self._clock.now) % backlog_s
            self._clock.after(left_s if left_s > SAME_S else left_s + backlog_s, self._help, model, helper)

    def _help(self, model: str, helper: Sidecar) -> None:
        if self._helper(model) is helper and helper.can_claim:
            self._claim(helper, model)
        self._look_for_help(model)

    def _helper(self, model: str) -> Sidecar | None:
        """Return the sidecar whose turn it is to help, if the holders do not keep up.

        Of production's check by each sidecar, only that of the first in order can succeed.
        """
        holders = {each.name for each in self._holders[model]}
        backlog = len(self._streams[model]) + len(self._lines[model].turns)
        held = [each.health() for each in self._holders[model]]
        idle = (each for each in self._healths() if each.worker not in holders and each.open * 4 <= each.limit)
        one = next(idle, None)
        if one is None or not holders or not should_help(one, holders, backlog, held):
            return None
        (first, *_) = order(model, self._sizes[model], [one, *idle], self._claimed()) or [""]
        return self._sidecars.get(first)

    def _healths(self) -> Sequence[Health]:
        """Return all heartbeats, as of a moment ago at most."""
        now = self._clock.now
        if now - self._heard_at >= OF_SIDECAR.placing_look_s or len(self._heard) != len(self._sidecars):
            self._heard, self._heard_at = [each.health() for each in self._sidecars.values()], now
        return self._heard

    def _claimed(self) -> Mapping[str, Mapping[str, float]]:
        return {name: each.claims for name, each in self._sidecars.items()}


def hash_of(name: str) -> float:
    """Return a number from 0 to 1 that belongs to a name.

    >>> 0 <= hash_of("m1") < 1 and hash_of("m1") != hash_of("m2")
    True
    """
    return crc32(name.encode()) / 2**32
