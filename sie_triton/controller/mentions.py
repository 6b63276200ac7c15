"""Known models that requests name: the names that wait to be served, and the models that leave for them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from time import monotonic, monotonic_ns

from sie_triton.contract.did_you_mean import closest
from sie_triton.contract.names import matches, triton_name
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.model_states import ModelState
from sie_triton.errors import ModelLoading
from sie_triton.records.change import UNKNOWN, ChangeRefused
from sie_triton.records.known_file import KnownFile
from sie_triton.records.serving_file import Serving
from sie_triton.settings import words

SEE_KNOWN = "sie-triton models ls --known lists known models"


@dataclass(slots=True)
class Waiting:
    """A name that waits, with the future of those who wait for it, and when it was last asked for."""

    future: Future[None]
    asked_at: float


class Mentions:
    """Names of known models that wait to be served.

    Any thread may call `ask` and `are_due`; the thread of Changes calls the other methods.
    """

    def __init__(self, known: KnownFile, limits: ControllerLimits = ControllerLimits()) -> None:
        self._known, self._limits = known, limits
        self._waiting: dict[str, Waiting] = {}
        self._lock = Lock()
        self._due = 0.0
        self._added: dict[str, float] = {}
        self._refused: dict[str, tuple[float, str]] = {}

    def ask(self, name: str, serving: Serving) -> Future[None]:
        """Return the future of a name, which is done once the model is in service.

        Raise ChangeRefused if the name may not be served, and ModelLoading if too many names wait.
        """
        self._check(name, serving)
        with self._lock:
            self._drop_forgotten()
            if name not in self._waiting and len(self._waiting) >= self._limits.max_waiting_names:
                raise ModelLoading(f"{name} is not served yet: {len(self._waiting)} other models wait; retry")
            waiting = self._waiting.setdefault(name, Waiting(Future(), 0.0))
            waiting.asked_at = monotonic()
            return waiting.future

    def are_due(self) -> bool:
        """True if names wait, and the pause after the last ones is over."""
        return bool(self._waiting) and monotonic() >= self._due

    def take(self, num: int) -> Mapping[str, Future[None]]:
        """Remove and return the next `num` names, the oldest first."""
        with self._lock:
            self._drop_forgotten()
            names = list(self._waiting)[:num]
            return {name: self._waiting.pop(name).future for name in names}

    def pause(self, seconds: float) -> None:
        """Let other models' requests have the processor before the next names are taken."""
        self._due = monotonic() + seconds

    def are_in_use(self, models: Mapping[str, ModelState], besides: Iterable[str]) -> bool:
        """Return whether a model other than those of `besides`, by Triton's names, has had a request lately."""
        since_ns = monotonic_ns() - self._limits.in_use_s * 1e9
        return any(models[name].record["last_used_ns"] > since_ns for name in models.keys() - set(besides))

    def _drop_forgotten(self) -> None:
        oldest = monotonic() - self._limits.forget_name_s
        for name in [name for name, waiting in self._waiting.items() if waiting.asked_at < oldest]:
            self._waiting.pop(name).future.set_exception(ModelLoading(f"{name} waits to be served; retry"))

    def room_for(
        self, names: Collection[str], mentioned: Sequence[str], limit: int, models: Mapping[str, ModelState]
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Return which of `names` can be served, and which models must leave for them, with at most `limit` models.

        `mentioned` are the names of the present ones, and `models` the states of all models by Triton's name. Cold
        models leave first, the least recently used first; none that is busy, loads, or was just added.
        """
        added_by = monotonic() - self._limits.min_stay_s
        new = {name for name in mentioned if self._added.get(name, added_by) > added_by}
        states = {name: models.get(triton_name(name)) for name in mentioned}  # None: its processes never started

        def order(name: str) -> tuple[bool, int, str]:
            state = states[name]
            return (state.is_resident, state.record["last_used_ns"], name) if state else (False, 0, name)

        busy = {name for name, state in states.items() if state and (state.is_busy or state.state == "loading")}
        free = max(0, limit - len(mentioned))
        leaving = sorted(states.keys() - busy - new, key=order)[: max(0, len(names) - free)]
        return list(names)[: free + len(leaving)], leaving

    def served(self, name: str) -> None:
        """Record that a model was added."""
        self._added[name] = monotonic()

    def left(self, names: Iterable[str]) -> None:
        for name in names:
            self._added.pop(name, None)

    def refuse(self, name: str, reason: str) -> ChangeRefused:
        """Return the error of a name that cannot be served, and remember it for a while."""
        if len(self._refused) >= self._limits.max_refused_names:
            self._refused.clear()
        self._refused[name] = monotonic() + self._limits.refuse_name_s, reason
        return ChangeRefused(UNKNOWN, reason)

    def _check(self, name: str, serving: Serving) -> None:
        settings, known = serving.settings, self._known.specs()
        until, reason = self._refused.get(name, (0.0, ""))
        if until > monotonic():
            raise ChangeRefused(UNKNOWN, reason)
        if not settings["serve_known"]:
            raise ChangeRefused(UNKNOWN, f"{name} is not served{closest(name, serving.models)}")
        may_be_on_hub = settings["allow_any_model"] and matches(name, words(settings.get("model_filter", "")))
        if known is not None and name not in known and not may_be_on_hub:
            names = {*serving.models, *known}
            raise ChangeRefused(UNKNOWN, f"{name} is not served{closest(name, names)}; {SEE_KNOWN}")
