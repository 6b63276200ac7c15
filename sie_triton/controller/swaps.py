"""Replace the process of a model's stage through Triton's load call, and end the process before it.

An eviction is a swap of the inference step for a cold one:

    evict → Triton starts a cold stub, which gets the requests that come from now on
          → the old stub answers those that came before
          → end_drained: it has none, so its worker ends, and the memory is free; Triton ends the stub
          → end_superseded: Triton keeps a stub that nobody needs, so it is killed
"""

import logging
import signal
from collections.abc import Callable, Container, Iterator, Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from time import monotonic

from tritonclient.utils import InferenceServerException

from sie_triton.contract.names import sie_name
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.model_control import ModelControl
from sie_triton.controller.model_states import ModelState, Stages, num_open
from sie_triton.records.status import STAGES, process_of
from sie_triton.system.processes.pids import ProcessId
from sie_triton.system.telemetry.spans import event

log = logging.getLogger(__name__)

# Beginning of the reason of an eviction.
EVICT = "evict: "


def is_eviction(reason: str) -> bool:
    return reason.startswith(EVICT)


class Backoff:
    """Pauses between attempts at the same thing, doubled each time. Any thread may call the methods."""

    def __init__(self, limits: ControllerLimits) -> None:
        self._limits = limits
        self._attempts: dict[object, tuple[float, float]] = {}

    def is_due(self, what: object) -> bool:
        return monotonic() >= self._attempts.get(what, (0.0, 0.0))[0]

    def begin(self, what: object) -> None:
        _, pause = self._attempts.get(what, (0.0, self._limits.first_pause_s))
        self._attempts[what] = monotonic() + pause, min(2 * pause, self._limits.longest_pause_s)

    def end(self, what: object) -> None:
        self._attempts.pop(what, None)

    def clear(self) -> None:
        self._attempts.clear()


class Swaps:
    """The swaps under way, one at a time for each stage of a model, on a pool of threads.

    `counts` is their number so far, by model and reason; `steps_of` returns the prefix of the names of a model's steps.
    The controller's round, its loads and its HTTP API start swaps; the futures raise OutOfService, or tritonclient's
    InferenceServerException, which is logged as well. The round alone calls `look`, `end_drained` and `end_superseded`.
    """

    def __init__(
        self,
        control: ModelControl,
        steps_of: Callable[[str], str] = str,
        limits: ControllerLimits = ControllerLimits(),
    ) -> None:
        self._control = control
        self._steps_of, self._limits = steps_of, limits
        self._pool = ThreadPoolExecutor(limits.max_swaps, "swap")
        self._under_way: dict[tuple[str, bool], Future[None]] = {}
        self._at_look: Set[tuple[str, bool]] = frozenset()
        self._locks: dict[str, Lock] = {}
        self._failed = Backoff(limits)
        self._drained: Set[ProcessId] = frozenset()
        self._superseded: dict[ProcessId, float] = {}
        self.counts: dict[tuple[str, str], int] = {}

    def swap(self, model: str, stage: str, reason: str, *, resident: bool = False) -> Future[None]:
        """Replace the process of a stage of `model`, unless such a swap is under way."""
        name = f"{self._steps_of(model)}-{stage}"
        if not self._is_under_way(name, resident):
            self.counts[model, reason] = self.counts.get((model, reason), 0) + 1
            log.info("%s: %s", name, reason)
            self._under_way[name, resident] = self._pool.submit(self._swap, model, name, resident, reason)
        return self._under_way[name, resident]

    def evict(self, model: str, reason: str) -> Future[None]:
        return self.swap(model, "inference", f"{EVICT}{reason}")

    def look(self) -> None:
        """Begin a round, before it reads the records: they may be older than the end of a swap."""
        self._at_look = {key for key, swap in self._under_way.copy().items() if not swap.done()}

    def is_evicting(self, model: str) -> bool:
        """Return True if the model is being evicted, or was when the round began."""
        name = f"{self._steps_of(model)}-inference"
        return (name, False) in self._at_look or self._is_under_way(name, False)

    def may_evict(self, model: str) -> bool:
        return not self.is_evicting(model) and self.may_try(model)

    def may_try(self, model: str, stage: str = "inference") -> bool:
        """Return False for a while after a failed swap, so that a round does not repeat it at once."""
        return self._failed.is_due(f"{self._steps_of(model)}-{stage}")

    def end_drained(self, models: Mapping[str, ModelState]) -> None:
        """End workers of old processes without requests in two rounds: Triton takes a second to end the processes."""
        drained = {
            worker
            for model in models.values()
            for record in model.draining
            if not record["num_open"] and not self.is_evicting(model.name)
            for worker in model.workers_of(record)
        }
        for model in models.values():
            drained.update(*map(model.workers_of, model.finished()))
        for worker in drained & self._drained:
            worker.send(signal.SIGTERM)
        self._drained = drained

    def end_superseded(self, stages: Stages, leaving: Container[str] = ()) -> None:
        """Kill unneeded old processes that Triton keeps for a request that it never runs: one without a batch."""
        now = monotonic()
        self._superseded = {process: self._superseded.get(process, now) for process in self._unneeded(stages, leaving)}
        for process, since in self._superseded.items():
            if now - since > self._limits.superseded_s:
                process.send(signal.SIGKILL)

    def _unneeded(self, stages: Stages, leaving: Container[str]) -> Iterator[ProcessId]:
        """Yield the old processes that no request needs.

        A request holds one process of each step from its start. After a swap of a step, the requests that hold its old
        process have reached it once the steps before were seen without requests.
        """
        for stage, by_steps in stages.items():
            before = {each: stages[each] for each in STAGES[: STAGES.index(stage)]}
            for steps, processes in by_steps.items():
                if steps in leaving:
                    yield from () if num_open(stages, steps) else map(process_of, processes.living)
                    continue
                have_reached_it = not num_open(before, steps)
                for record in processes.living[:-1]:
                    process = process_of(record)
                    if not record["num_open"] and (have_reached_it or process in self._superseded):
                        yield process

    @contextmanager
    def none_of(self, model: str) -> Iterator[None]:
        """Exclude swaps of `model` inside the context: a swap reloads the ensembles as they were when it began."""
        with self._locks.setdefault(model, Lock()):
            yield

    def forget(self) -> None:
        """Forget the swaps under way, which belong to a tritonserver that has ended."""
        self._under_way.clear()
        self._failed.clear()
        self._at_look = frozenset()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _is_under_way(self, name: str, resident: bool) -> bool:
        return (name, resident) in self._under_way and not self._under_way[name, resident].done()

    def _swap(self, model: str, name: str, resident: bool, reason: str) -> None:
        try:
            with self.none_of(model), event(f"swap {name}", {"sie.model": sie_name(model), "sie.reason": reason}):
                self._control.swap(name, resident=resident)
        except Exception as exc:
            self._failed.begin(name)
            if isinstance(exc, InferenceServerException):
                log.error("%s: Triton did not load it: %s", name, exc.message())
            raise
        self._failed.end(name)
