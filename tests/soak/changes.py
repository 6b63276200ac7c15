"""A client that changes a model all the time, and asks for it: added, replaced, given an adapter, and removed."""

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from itertools import cycle

import numpy as np

from sie_triton import SIEClient
from sie_triton.client.failures import NotServed
from sie_triton.errors import BusyError, InputError, LoadError, ServerError
from tests.soak.clients import PAUSE_S, TIMEOUT_S, same
from tests.soak.history import FAILED, REFUSED, RIGHT, WRONG, Entry
from tests.soak.targets import CHANGING, Target, Variant

NAME = "changes"

# Timeouts in seconds: for the administrator's request, which is sent again until then, and for its effect.
APPLY_S, EFFECT_S = 30.0, 30.0

# Pause after a change, and the time in which all workers of a cluster must have it, in seconds.
SETTLE_S, EVERYWHERE_S = 5.0, 60.0


class Changing:
    """The client. One thread changes the model from variant to variant, another asks for it.

    An answer is right if it is that of a variant which the model may have: the one before a change and the one after
    it until all workers say that they have it, and then the one after it alone.
    """

    name = NAME
    models: Sequence[str] = (CHANGING,)

    def __init__(self, target: Target) -> None:
        self._target, self._variants = target, target.saved.variants
        self._expected: dict[tuple[str, str], np.ndarray] = {}
        self._may = frozenset({self._variants[-1]})
        # When an answer of each variant came last: the time at which its request began.
        self._seen: dict[Variant, float] = {}

    def learn(self, texts: Sequence[str]) -> None:
        """Take the answers of each variant before the first fault as the right ones."""
        with closing(SIEClient(self._target.grpc)) as client:
            for variant in self._variants:
                self._apply(variant)
                for text in texts if variant.file else ():
                    self._expected[variant.name, text] = self._first(client, text, variant)

    def run(self, seed: int, stopped: threading.Event, pause_s: float, texts: Sequence[str]) -> list[Entry]:
        over, entries = threading.Event(), list[Entry]()
        with ThreadPoolExecutor(1) as threads:
            asking = threads.submit(self._ask, np.random.default_rng(seed), over, max(pause_s, PAUSE_S), texts)
            try:
                for variant in cycle(self._variants):
                    if stopped.is_set():
                        break
                    entries.append(self._change(variant, stopped))
            finally:
                over.set()
            return entries + asking.result()

    def _change(self, variant: Variant, stopped: threading.Event) -> Entry:
        """Change the model, and wait for the effect."""
        before, began = self._may, time.monotonic()
        self._may = before | {variant}
        try:
            self._apply(variant)
            applied = time.monotonic()
            while self._seen.get(variant, 0.0) < applied:
                if time.monotonic() > applied + EFFECT_S:
                    raise ServerError(f"no answer as {variant.name} {EFFECT_S:g} s after the change")
                time.sleep(PAUSE_S)
            took = time.monotonic()
            while not self._target.has_changed():
                if time.monotonic() > took + EVERYWHERE_S:
                    raise ServerError(f"a worker lacks the change after {EVERYWHERE_S:g} s")
                time.sleep(PAUSE_S)
        except ServerError as exc:
            return Entry(NAME, CHANGING, began, time.monotonic(), FAILED, f"to {variant.name}: {exc}")
        stopped.wait(SETTLE_S)
        self._may = frozenset({variant})
        return Entry(NAME, CHANGING, began, took, RIGHT)

    def _apply(self, variant: Variant) -> None:
        """Send the change, again while nobody takes it: whoever does may have been killed."""
        deadline = time.monotonic() + APPLY_S
        while True:
            try:
                if variant.file:
                    return self._target.put(variant.file)
                return self._target.delete(CHANGING)
            except ServerError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_S)

    def _first(self, client: SIEClient, text: str, variant: Variant) -> np.ndarray:
        """Return the answer once it is none of the variants before, as a worker of a cluster may still give it."""
        others = [vector for (_, of), vector in self._expected.items() if of == text]
        deadline = time.monotonic() + EFFECT_S
        while True:
            with suppress(InputError, BusyError, LoadError):
                found = self._vector(client, text, variant.lora)
                if not any(same(found, each) for each in others):
                    return found
            assert time.monotonic() < deadline, f"{variant.name} is not served, or answers as another variant"
            time.sleep(PAUSE_S)

    @staticmethod
    def _vector(client: SIEClient, text: str, lora: str) -> np.ndarray:
        options = {"lora": lora} if lora else {}
        return np.asarray(client.encode(CHANGING, text, timeout=TIMEOUT_S - 1, **options)["dense"])

    def _ask(
        self, rng: np.random.Generator, over: threading.Event, pause_s: float, texts: Sequence[str]
    ) -> list[Entry]:
        entries = []
        with closing(SIEClient(self._target.grpc)) as client:
            while not over.wait(pause_s):
                entries.append(self._asked(client, texts[rng.integers(len(texts))]))
        return entries

    def _asked(self, client: SIEClient, text: str) -> Entry:
        may, began = self._may, time.monotonic()
        lora = next((each.lora for each in may if each.lora), "")
        outcome, error = RIGHT, ""
        try:
            found = self._variants_of(client, text, lora)
        except (BusyError, LoadError) as exc:
            outcome, error = (REFUSED if exc.retry_after_s else FAILED), f"{type(exc).__name__}: {exc}"
        except Exception as exc:
            outcome, error = FAILED, f"{type(exc).__name__}: {exc}"
        else:
            for each in found:
                self._seen[each] = began
            if not found & (may | self._may):
                outcome, error = WRONG, f"as {_names(found)}, not as {_names(may | self._may)}"
        return Entry(NAME, CHANGING, began, time.monotonic(), outcome, error)

    def _variants_of(self, client: SIEClient, text: str, lora: str) -> frozenset[Variant]:
        """Return the variants that answer so."""
        try:
            vector = self._vector(client, text, lora)
        except NotServed:
            return frozenset(each for each in self._variants if not each.file)
        except InputError as exc:
            if exc.field != "lora":
                raise
            return frozenset(each for each in self._variants if each.file and not each.lora)
        served = [each for each in self._variants if each.file and each.lora == lora]
        return frozenset(each for each in served if same(vector, self._expected[each.name, text]))


def _names(variants: Iterable[Variant]) -> str:
    return ", ".join(sorted(each.name for each in variants)) or "none"
