"""Replace the process of a model's stage through Triton's load call, and end the process before it.

An eviction is a swap of the inference step for a cold one:

    evict → Triton starts a cold stub, which gets the requests that come from now on
          → the old stub answers those that came before
          → end_unneeded: no request needs it, so its worker ends, and the memory is free; Triton ends the stub
"""

import logging
import signal
from collections.abc import Callable, Container, Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from time import monotonic

from tritonclient.utils import InferenceServerException

from sie_triton.contract.names import sie_name
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.model_control import ModelControl
from sie_triton.controller.model_states import Processes, Stages, num_open
from sie_triton.records.revisions import model_of, revision_of
from sie_triton.records.status import LOADING, STAGES, Record, process_of
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
    InferenceServerException, which is logged as well. The round alone calls `look` and `end_unneeded`.
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
        self._unneeded: dict[ProcessId, float] = {}
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
        return self._is_swapping(f"{self._steps_of(model)}-inference")

    def may_evict(self, model: str) -> bool:
        return not self.is_evicting(model) and self.may_try(model)

    def may_try(self, model: str, stage: str = "inference") -> bool:
        """Return False for a while after a failed swap, so that a round does not repeat it at once."""
        return self._failed.is_due(f"{self._steps_of(model)}-{stage}")

    def end_unneeded(self, stages: Stages, leaving: Container[str] = ()) -> None:
        """End the old processes that no request needs in two rounds: their workers at once, they themselves later.

        Triton takes a second to end a process, and keeps one for a request that it never runs: one without a batch.
        """
        now, before, found = monotonic(), self._unneeded, [*self._find_unneeded(stages, leaving)]
        self._unneeded = {process_of(record): before.get(process_of(record), now) for *_, record in found}
        for steps, processes, record in found:
            process = process_of(record)
            if now - self._unneeded[process] > self._limits.superseded_s:
                process.send(signal.SIGKILL)
            elif process in before and (steps not in leaving or _is_awaited(stages, steps)):
                for worker in processes.workers_of(record):
                    worker.send(signal.SIGTERM)

    def _find_unneeded(self, stages: Stages, leaving: Container[str]) -> Iterator[tuple[str, Processes, Record]]:
        """Yield the old processes that no request needs, each with its steps and their processes.

        A request holds one process of each step from its start. After a swap of a step, the requests that hold its old
        process have reached it once the steps before were seen without requests.
        """
        for stage, by_steps in stages.items():
            earlier = {each: stages[each] for each in STAGES[: STAGES.index(stage)]}
            for steps, processes in by_steps.items():
                is_leaving = steps in leaving
                may_come = num_open(stages if is_leaving else earlier, steps)
                old = processes.living if is_leaving else processes.living[:-1]
                for record in () if self._is_swapping(f"{steps}-{stage}") else old:
                    # `_unneeded` has it: those steps were seen without requests in a round before.
                    have_come = not may_come or (process_of(record) in self._unneeded and not is_leaving)
                    if have_come and not record["num_open"]:
                        yield steps, processes, record

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

    def _is_swapping(self, name: str) -> bool:
        """Return True if a step is being replaced, or was when the round began: its old process may get requests."""
        return any((name, each) in self._at_look or self._is_under_way(name, each) for each in (False, True))

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


def _is_awaited(stages: Stages, steps: str) -> bool:
    """Return True if a later revision of the model waits for the weights of these `steps` to go."""
    return any(
        record["state"] == LOADING
        for other, processes in stages["inference"].items()
        for record in processes.living
        if model_of(other) == model_of(steps) and revision_of(other) > revision_of(steps)
    )
