"""A sidecar of our rules: fetched requests → joined calls of Triton → answers. The joiner's and runner's part."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.simulation.clock import Clock
from benchmarks.simulation.load import Request
from benchmarks.simulation.machines import Machine
from benchmarks.simulation.parameters import Parameters
from sie_triton.cluster.limits import SidecarLimits
from sie_triton.cluster.messages import Health
from sie_triton.cluster.policies.fair import Tenants
from sie_triton.cluster.policies.quantum import Quantum
from sie_triton.doors.shared_calls import num_shared, smoothed


@dataclass(slots=True)
class _Line:
    """Requests of one tenant for a model. `request_s` is the time of a call for each of its requests."""

    num_calls: int = 0
    request_s: float = 0.0
    waiting: deque[tuple[float, Request]] = field(default_factory=deque)


class Sidecar:
    """`conclude` takes a request that has been computed; `when_free` is called when there is room again."""

    def __init__(
        self,
        machine: Machine,
        models: Sequence[str],
        parameters: Parameters,
        conclude: Callable[[Request], object],
        when_free: Callable[["Sidecar"], object],
    ) -> None:
        self.machine, self._models, self._parameters = machine, models, parameters
        self._clock: Clock = machine.clock
        self._conclude, self._when_free = conclude, when_free
        self.quantum = Quantum(parameters.target_ms)
        self._tenants = Tenants(lambda: self._clock.now)
        self._lines: dict[tuple[str, str], _Line] = {}
        self.open: dict[Request, None] = {}
        self.claims: dict[str, float] = {}  # model → time of its last work
        self.num_of_models: dict[str, int] = {}
        self.is_draining = False
        self._health: Health | None = None
        self._told_at = float("-inf")

    @property
    def name(self) -> str:
        return self.machine.name

    @property
    def can_claim(self) -> bool:
        return self.machine.is_up and not self.is_draining

    @property
    def room(self) -> int:
        return 0 if not self.can_claim else max(0, self.quantum.limit - len(self.open))

    def health(self) -> Health:
        """Return the latest heartbeat, as the others know it."""
        now = self._clock.now
        if self._health is None or now - self._told_at >= SidecarLimits.heartbeat_s:
            resident = {
                name: (each.num_bytes, now - each.used_at)
                for name, each in self.machine.resident.items()
                if not each.is_leaving
            }
            self._health = Health(
                self.name,
                "",
                "",
                not self.is_draining,
                self._models,
                (),
                resident,
                self.machine.free_bytes,
                len(self.open),
                self.quantum.limit,
            )
            self._told_at = now
        return self._health

    def idle_s(self, model: str) -> float:
        return 0.0 if self.num_of_models.get(model) else self._clock.now - self.claims[model]

    def start(self, request: Request) -> None:
        """Compute a request."""
        self.open[request] = None
        self.num_of_models[request.model] = self.num_of_models.get(request.model, 0) + 1
        if self._tenants.note(request.tenant):
            self.quantum.begin_anew()
        key = request.model, request.tenant
        line = self._lines.setdefault(key, _Line())
        if line.num_calls >= self._parameters.max_calls:
            line.waiting.append((self._clock.now, request))
        else:
            self._call(key, line, [request])

    def withdraw(self, request: Request) -> None:
        """Forget a request; what is being computed goes on."""
        if request in self.open:
            self._end(request)

    def _call(self, key: tuple[str, str], line: _Line, together: Sequence[Request]) -> None:
        line.num_calls += 1
        began = self._clock.now

        def ended(wait_s: float) -> None:
            for each in together:
                if each in self.open:
                    self._conclude(each)
                    self._take_wait(wait_s, each.waited_s)
            line.num_calls -= 1
            line.request_s = smoothed(line.request_s, (self._clock.now - began) / len(together))
            self._go_on(key, line)
            for each in together:
                if each in self.open:
                    self._end(each)

        self.machine.call(key[0], len(together), ended)

    def _go_on(self, key: tuple[str, str], line: _Line) -> None:
        while line.waiting and line.num_calls < self._parameters.max_calls:
            call_s = (
                SidecarLimits.max_call_targets * self._parameters.target_ms / 1000
                if self._tenants.are_several
                else float("inf")
            )
            limit = min(
                self._parameters.joined_requests, num_shared(call_s, line.request_s, self._parameters.max_requests)
            )
            together: list[Request] = []
            while line.waiting and len(together) < limit:
                since, request = line.waiting.popleft()
                if request in self.open:
                    request.waited_s = self._clock.now - since
                    together.append(request)
            if together:
                self._call(key, line, together)
        if not line.waiting and not line.num_calls:
            self._lines.pop(key, None)

    def _take_wait(self, wait_s: float, waited_s: float) -> None:
        wait_ms = 1000 * (wait_s + (waited_s if self._tenants.are_several else 0.0))
        self.quantum.add(wait_ms, len(self.open) >= self.quantum.limit)

    def _end(self, request: Request) -> None:
        del self.open[request]
        self.num_of_models[request.model] -= 1
        if request.model in self.claims:
            self.claims[request.model] = self._clock.now
        self._when_free(self)
