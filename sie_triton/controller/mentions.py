"""Known models that requests name: the names that wait to be served, and the models that leave for them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Lock
from time import monotonic, monotonic_ns

from sie_triton.contract.did_you_mean import closest
from sie_triton.contract.names import matches, triton_name
from sie_triton.controller.model_states import ModelState
from sie_triton.controller.refresh import ChangeRefused
from sie_triton.errors import ModelLoading
from sie_triton.records.known_file import KnownFile
from sie_triton.records.serving_file import UNKNOWN, Serving
from sie_triton.settings import words

# Maximum number of names that wait, and seconds after which a name is dropped that nobody has asked for again.
MAX_WAITING = 64
FORGET_S = 30.0

# Seconds during which a model that was added does not leave: its first request has not come yet.
MIN_STAY_S = 10.0

# A model is in use for so many seconds after its last request.
IN_USE_S = 5.0

# Seconds for which a name that cannot be served is refused without another look, and the number of such names.
REFUSE_S = 60.0
MAX_REFUSED = 1000

SEE_KNOWN = "sie-triton models ls --known lists known models"


@dataclass(frozen=True, slots=True)
class Mentioned:
    """A model that is served because a request named it; `last_used_ns` is monotonic, 0 if it never was used."""

    name: str
    last_used_ns: int
    is_resident: bool
    is_busy: bool


def leavers(models: Iterable[Mentioned], num: int) -> list[str]:
    """Return up to `num` models to remove: cold ones first, the least recently used first, and no busy one.

    >>> leavers([Mentioned("a", 1, True, False), Mentioned("b", 2, False, False), Mentioned("c", 0, False, True)], 2)
    ['b', 'a']
    """
    idle = (model for model in models if not model.is_busy)
    ordered = sorted(idle, key=lambda model: (model.is_resident, model.last_used_ns, model.name))
    return [model.name for model in ordered[: max(0, num)]]


@dataclass(slots=True)
class Waiting:
    """A name that waits, with the future of those who wait for it, and when it was last asked for."""

    future: Future[None]
    asked_at: float


def are_in_use(models: Mapping[str, ModelState], besides: Iterable[str]) -> bool:
    """Return whether a model other than those of `besides`, by Triton's names, has had a request lately."""
    since_ns = monotonic_ns() - IN_USE_S * 1e9
    return any(models[name].record["last_used_ns"] > since_ns for name in models.keys() - set(besides))


class Mentions:
    """Names of known models that wait to be served.

    Any thread may call `ask` and `are_due`; the thread of Changes calls the other methods.
    """

    def __init__(self, known: KnownFile) -> None:
        self._known = known
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
            if name not in self._waiting and len(self._waiting) >= MAX_WAITING:
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

    def _drop_forgotten(self) -> None:
        oldest = monotonic() - FORGET_S
        for name in [name for name, waiting in self._waiting.items() if waiting.asked_at < oldest]:
            self._waiting.pop(name).future.set_exception(ModelLoading(f"{name} waits to be served; retry"))

    def room_for(
        self, names: Collection[str], mentioned: Sequence[str], limit: int, models: Mapping[str, ModelState]
    ) -> tuple[Sequence[str], Sequence[str]]:
        """Return which of `names` can be served, and which models must leave for them, with at most `limit` models.

        `mentioned` are the names of the present ones, and `models` the states of all models by Triton's name.
        """
        staying = (name for name in mentioned if monotonic() - self._added.get(name, -MIN_STAY_S) >= MIN_STAY_S)
        states = (_state_of(name, models.get(triton_name(name))) for name in staying)
        free = max(0, limit - len(mentioned))
        leaving = leavers(states, len(names) - free)
        return list(names)[: free + len(leaving)], leaving

    def served(self, name: str) -> None:
        """Record that a model was added."""
        self._added[name] = monotonic()

    def left(self, names: Iterable[str]) -> None:
        for name in names:
            self._added.pop(name, None)

    def refuse(self, name: str, reason: str) -> ChangeRefused:
        """Return the error of a name that cannot be served, and remember it for a while."""
        if len(self._refused) >= MAX_REFUSED:
            self._refused.clear()
        self._refused[name] = monotonic() + REFUSE_S, reason
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


def _state_of(name: str, state: ModelState | None) -> Mentioned:
    if state is None:  # its processes have never started
        return Mentioned(name, 0, is_resident=False, is_busy=False)
    is_busy = bool(state.pending) or state.state == "loading"
    return Mentioned(name, state.record["last_used_ns"], state.is_resident, is_busy)
