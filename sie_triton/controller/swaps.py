"""Replace the process of a model's stage, through Triton's load call."""

import logging
from collections.abc import Callable, Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock

from tritonclient.utils import InferenceServerException

from sie_triton.contract.names import sie_name
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.model_control import ModelControl
from sie_triton.system.telemetry.spans import event

log = logging.getLogger(__name__)

# Beginning of the reason of an eviction.
EVICT = "evict: "


def is_eviction(reason: str) -> bool:
    return reason.startswith(EVICT)


class Swaps:
    """The swaps under way, one at a time for each stage of a model, on a pool of threads.

    `counts` is their number so far, by model and reason; `steps_of` returns the prefix of the names of a model's steps.
    The controller's round, its loads and its HTTP API start swaps; the futures raise OutOfService, or tritonclient's
    InferenceServerException, which is logged as well.
    """

    def __init__(
        self,
        control: ModelControl,
        steps_of: Callable[[str], str] = str,
        limits: ControllerLimits = ControllerLimits(),
    ) -> None:
        self._control = control
        self._steps_of = steps_of
        self._pool = ThreadPoolExecutor(limits.max_swaps, "swap")
        self._under_way: dict[tuple[str, bool], Future[None]] = {}
        self._at_look: Set[tuple[str, bool]] = frozenset()
        self._locks: dict[str, Lock] = {}
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

    @contextmanager
    def none_of(self, model: str) -> Iterator[None]:
        """Exclude swaps of `model` inside the context: a swap reloads the ensembles as they were when it began."""
        with self._locks.setdefault(model, Lock()):
            yield

    def forget(self) -> None:
        """Forget the swaps under way, which belong to a tritonserver that has ended."""
        self._under_way.clear()
        self._at_look = frozenset()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _is_under_way(self, name: str, resident: bool) -> bool:
        return (name, resident) in self._under_way and not self._under_way[name, resident].done()

    def _swap(self, model: str, name: str, resident: bool, reason: str) -> None:
        try:
            with self.none_of(model), event(f"swap {name}", {"sie.model": sie_name(model), "sie.reason": reason}):
                self._control.swap(name, resident=resident)
        except InferenceServerException as exc:
            log.error("%s: Triton did not load it: %s", name, exc.message())
            raise
