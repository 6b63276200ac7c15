"""The machines of a simulation over time: starts, losses, and the scaling rules. It adds up what is paid for."""

from collections.abc import Callable
from itertools import count

import numpy as np

from benchmarks.simulation.clock import Clock
from benchmarks.simulation.machines import Machine
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.rules import Rules
from benchmarks.simulation.scaling import POLL_S, Scaling


class Fleet:
    """`made` makes a machine of a name; with `has_losses`, machines end without notice, and others take their place."""

    def __init__(
        self,
        clock: Clock,
        parameters: Parameters,
        rules: Rules,
        made: Callable[[str], Machine],
        rng: np.random.Generator,
        *,
        has_losses: bool,
    ) -> None:
        self._clock, self._parameters, self._rules, self._made, self._rng = clock, parameters, rules, made, rng
        self._has_losses = has_losses
        self._numbers = count()
        self._ready: dict[str, Machine] = {}
        self._num_starting, self._num_draining = 0, 0
        self._paid_s, self._ready_s, self._looked_at = 0.0, 0.0, 0.0
        self.machines: list[Machine] = []  # all that have been ready
        self.num_lost, self.largest = 0, 0

    @property
    def num_machines(self) -> int:
        return len(self._ready) + self._num_starting

    def times(self) -> tuple[float, float]:
        """Return the seconds of all machines so far: from the beginning of their start, and while they are ready."""
        passed_s = self._clock.now - self._looked_at
        self._looked_at = self._clock.now
        num_ready = len(self._ready) + self._num_draining
        self._paid_s += passed_s * (num_ready + self._num_starting)
        self._ready_s += passed_s * num_ready
        return self._paid_s, self._ready_s

    def begin(self, num_machines: int) -> None:
        """Have so many machines that are ready."""
        for _ in range(num_machines):
            self._num_starting += 1
            self._has_started()

    def scale(self, min_machines: int, max_machines: int) -> None:
        """Follow the scaling rules from now on. The first poll is at any time of its interval, as requests are."""
        scaling = Scaling(min_machines, max_machines)

        def poll() -> None:
            self._resize(scaling.next(self._clock.now, self._rules.demand(), self.num_machines))

        self._clock.after(float(self._rng.uniform(0.0, POLL_S)), self._clock.each, POLL_S, poll)

    def _resize(self, number: int) -> None:
        for _ in range(number - self.num_machines):
            self._start()
        for name in [*self._ready][number - self._num_starting :] if number < self.num_machines else []:
            machine = self._ready.pop(name)
            self.times()
            self._num_draining += 1
            self._rules.drain(machine, self._has_drained)

    def _start(self) -> None:
        self.times()
        self._num_starting += 1
        self._clock.after(self._parameters.machine_start_s + self._parameters.server_start_s, self._has_started)

    def _has_started(self) -> None:
        self.times()
        self._num_starting -= 1
        machine = self._made(f"worker-{next(self._numbers)}")
        self.machines.append(machine)
        self._ready[machine.name] = machine
        self.largest = max(self.largest, len(self._ready))
        self._rules.join(machine)
        if self._has_losses and self._parameters.spot_losses_per_hour:
            left_s = self._rng.exponential(3600.0 / self._parameters.spot_losses_per_hour)
            self._clock.after(float(left_s), self._lose, machine)

    def _has_drained(self) -> None:
        self.times()
        self._num_draining -= 1

    def _lose(self, machine: Machine) -> None:
        if self._ready.pop(machine.name, None) is None:
            return
        self.times()
        self.num_lost += 1
        machine.stop()
        self._rules.lose(machine)
        self._start()
