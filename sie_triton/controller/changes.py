"""Add, change and remove models on a running server, without disturbing requests.

    model files → repository (by a child process) → new steps, cold → ensembles → unload the old steps, once idle

A request holds all steps of its ensemble from its start, so it finishes with the steps that it began with.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

from tritonclient.utils import InferenceServerException

from sie_triton.contract.names import sie_name, triton_name
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.mentions import Mentions
from sie_triton.controller.model_control import READY, UNLOADED, ModelControl
from sie_triton.controller.model_states import Stages, models_of, num_open
from sie_triton.controller.repository import Wanted, Watch, refresh, remove_steps, steps_in, touch, wanted
from sie_triton.controller.swaps import Swaps
from sie_triton.errors import ModelLoading, ServerError
from sie_triton.records.change import CONFLICT, UNKNOWN, ChangeOutcome, ChangeRefused
from sie_triton.records.known_file import FORWARDED, KnownFile
from sie_triton.records.revisions import ensembles_of, model_of
from sie_triton.records.serving_file import Served, Serving, read_serving
from sie_triton.records.status import STAGES
from sie_triton.system.host.container import num_processors

log = logging.getLogger(__name__)

NO_CHANGES = "the models of this server cannot be changed: start it with sie-triton serve of this version"


class Changes:
    """Updates the repository to the model files, and Triton to the repository.

    Holds `files`, None if no launcher has written serving.json; `serving`, the steps that each model's requests take as
    far as this controller knows, "" for a removed model; and how long old steps have been idle. A restarted controller
    needs none of it. The round calls `tick`. Changes are made one at a time, on a separate thread; their futures raise
    ChangeRefused, ServerError, or tritonclient's InferenceServerException.
    """

    def __init__(
        self, data_dir: Path, control: ModelControl, swaps: Swaps, limits: ControllerLimits = ControllerLimits()
    ) -> None:
        self._data_dir, self._limits = data_dir, limits
        self._control = control
        self._swaps = swaps
        self._thread = ThreadPoolExecutor(1, "changes")
        # Triton starts three processes for each, beside the requests in progress.
        self._max_loads = max(1, min(4, num_processors() // 2))
        self._loads = ThreadPoolExecutor(self._max_loads, "change")
        self._watch = Watch()
        self._mentions = Mentions(KnownFile(data_dir), limits)
        self._forwarded = KnownFile(data_dir, FORWARDED)
        self._stages: Stages = {}
        self._wanted: Mapping[str, Wanted] = {}
        self._in_repository: set[str] = set()
        self._idle_since: dict[str, float] = {}
        self._checked: dict[str, float] = {}
        self._unloads: dict[str, Future[bool]] = {}
        self._failures: Mapping[str, str] = {}
        self._under_way: Future[None] | None = None
        self._due, self._pause = 0.0, limits.first_pause_s
        self.serving: dict[str, str] = {}
        self.files = read_serving(data_dir)

    @property
    def problems(self) -> Mapping[str, str]:
        """Problems, by model file, or by Triton's name of a model that cannot be brought into service."""
        return {**(self.files.problems if self.files else {}), **self._failures}

    @property
    def forwarded(self) -> Mapping[str, str]:
        """Sources of the models whose requests the door forwards, by SIE's name."""
        models = self.files.models if self.files else {}
        return {name: models[name].source for name in self._forwarded.specs() or {} if name in models}

    def served(self, model: str) -> Served | None:
        """Return the model's entry in serving.json; None if there is none."""
        return (self.files.models.get(sie_name(model)) or self.files.models.get(model)) if self.files else None

    def tick(self, stages: Stages) -> None:
        self._stages = stages
        if self.files is not None:
            self._unload_idle(stages)
        self.begin_due()

    def begin_due(self) -> bool:
        """Begin the changes that are due. Return True while steps are leaving, which are unloaded in a round."""
        if self.files is None:
            return False
        is_idle = self._under_way is None or self._under_way.done()
        if is_idle and (self._watch.has_changed(self.files) or monotonic() >= self._due):
            self._due = math.inf
            self._under_way = self._thread.submit(self._look)
        self._look_at_mentions()
        return bool(self.leaving(self._stages))

    def add(self, text: bytes) -> Future[ChangeOutcome]:
        """Add or replace the model of a model file; the future is done when the model is in service."""
        return self._thread.submit(self._refresh, add=text)

    def remove(self, model: str) -> Future[ChangeOutcome]:
        """Remove a model; the future is done when the model is out of service."""
        return self._thread.submit(self._refresh, remove=model)

    def mention(self, name: str) -> Future[None]:
        """Serve a known model, by SIE's name; the future is done when the model is in service.

        Raise ChangeRefused or ModelLoading, as the future does.
        """
        if self.files is None:
            raise ChangeRefused(UNKNOWN, f"{name} is not served")
        future = self._mentions.ask(name, self.files)
        self._look_at_mentions()
        return future

    def leaving(self, stages: Stages) -> set[str]:
        """Return the steps that get no new requests."""
        return {steps for steps in self._in_repository.union(*stages.values()) if self._is_leaving(steps)}

    def start_anew(self) -> None:
        """Reset for a new tritonserver, which has started with the models in the repository."""
        self.serving.clear()
        self._due, self._pause = monotonic(), self._limits.first_pause_s

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._loads.shutdown(wait=False, cancel_futures=True)

    def _look(self) -> None:
        """Refresh because files have changed, at the start, or after a failure."""
        try:
            if self._control.answers():
                self._refresh()
            else:
                self._due = monotonic() + self._limits.first_pause_s
        except (ServerError, InferenceServerException) as exc:
            log.error("models were not brought up to date: %s", exc)
        except Exception:
            log.exception("models were not brought up to date")
            self._try_again()

    def _refresh(self, **change: Any) -> ChangeOutcome:
        if self.files is None:
            raise ChangeRefused(CONFLICT, NO_CHANGES)
        try:
            outcome = refresh(self._data_dir, **change)
            before, self.files = self.files, read_serving(self._data_dir) or self.files
            _log_outcome(outcome, before)
            self._failures = self._settle(self.files.repository)
        except (ServerError, InferenceServerException) as exc:
            if not isinstance(exc, ChangeRefused):
                self._try_again()
            raise
        if self._failures:
            self._try_again()
        else:
            self._pause = self._limits.first_pause_s
            self._due = monotonic() + self._limits.read_faulty_s if outcome.problems else math.inf
        if outcome.model in self._failures:
            raise ServerError(self._failures[outcome.model])
        return outcome

    def _look_at_mentions(self) -> None:
        if self._mentions.are_due():
            self._thread.submit(self._bring_mentioned)

    def _bring_mentioned(self) -> None:
        """Serve the next names that wait, if there is room for them."""
        if not self._mentions.are_due():
            return
        waiting, started = self._mentions.take(self._max_loads), monotonic()
        try:
            reasons = self._served_names([name for name in waiting if not self.served(name)]) if waiting else {}
        except Exception as exc:
            reasons = dict.fromkeys(waiting, exc)
        for name, future in waiting.items():
            if name in reasons:
                future.set_exception(reasons[name])
            else:
                future.set_result(None)
        if self._mentions.are_in_use(models_of(self._stages, self.serving), besides=map(triton_name, waiting)):
            self._mentions.pause(monotonic() - started)

    def _served_names(self, names: Sequence[str]) -> dict[str, Exception]:
        """Serve known models; return why some of them are not served."""
        assert self.files is not None
        limit = self.files.settings["max_mentioned_models"]
        states = models_of(self._stages, self.serving)
        admitted, leaving = self._mentions.room_for(names, self.files.mentioned, limit, states)
        full = f"{limit} models are served because requests named them (SIE_MAX_MENTIONED_MODELS), and all are in use"
        refused = (name for name in names if name not in admitted)
        reasons: dict[str, Exception] = {
            name: ModelLoading(f"{name} is not served yet: {full}; retry") for name in refused
        }
        if not admitted:
            return reasons
        outcome = self._refresh(mention=admitted, forget=leaving)
        self._mentions.left(leaving)
        for name in admitted:
            if name in outcome.unknown:
                reasons[name] = self._mentions.refuse(name, outcome.unknown[name])
            elif failure := self._failures.get(triton_name(name)):
                reasons[name] = ServerError(failure)
            else:
                self._mentions.served(name)
        return reasons

    def _try_again(self) -> None:
        self._due = monotonic() + self._pause
        self._pause = min(2 * self._pause, self._limits.longest_pause_s)

    def _settle(self, repository: Path) -> Mapping[str, str]:
        """Make Triton serve the repository; return failures by model."""
        self._wanted, self._in_repository = wanted(repository), steps_in(repository)
        index = self._control.index()
        jobs = {
            model: self._loads.submit(self._bring, model, each, index)
            for model, each in self._wanted.items()
            if not self._is_settled(model, each, index)
        }
        known = self.serving.keys() | set(map(model_of, self._in_repository))
        gone = {model for model in known - self._wanted.keys() if self.serving.get(model) != ""}
        jobs |= {model: self._loads.submit(self._take_out, model) for model in gone}
        failures = {}
        for model, job in jobs.items():
            try:
                job.result()
            except InferenceServerException as exc:
                failures[model] = f"Triton: {exc.message()}"
            except (ServerError, OSError) as exc:
                failures[model] = str(exc)
        for model, failure in failures.items():
            log.error("%s: %s", model, failure)
        return failures

    def _is_settled(self, model: str, each: Wanted, index: Mapping[str, str]) -> bool:
        if all(index.get(f"{each.steps}-{stage}") == UNLOADED for stage in STAGES):
            self.serving[model] = each.steps  # taken out of service on request
        return self.serving.get(model) == each.steps

    def _bring(self, model: str, each: Wanted, index: Mapping[str, str]) -> None:
        """Bring a model's new steps into service, in place of the current ones."""
        for stage in STAGES:
            if index.get(name := f"{each.steps}-{stage}") != READY:
                self._control.load(name)
        with self._swaps.none_of(model):
            # The bare name is last: once its new ensemble is visible, those of the other tasks are too.
            for ensemble in sorted(each.ensembles, reverse=True):
                self._point(ensemble, each.steps)
            for ensemble in set(ensembles_of(model)) - set(each.ensembles):
                if self._control.steps_behind(ensemble):
                    self._control.unload(ensemble)
            self.serving[model] = each.steps

    def _point(self, ensemble: str, steps: str) -> None:
        """Switch an ensemble to `steps` atomically. If these were not loaded, Triton would take it out of service."""
        assert self.files is not None
        if self._control.steps_behind(ensemble) != steps:
            touch(self.files.repository, ensemble)
            self._control.load(ensemble)
            if self._control.steps_behind(ensemble) != steps:
                raise ServerError(f"Triton does not serve {ensemble} with the steps of {steps}")

    def _take_out(self, model: str) -> None:
        with self._swaps.none_of(model):
            for ensemble in ensembles_of(model):
                self._control.unload(ensemble)
            self.serving[model] = ""

    def _is_leaving(self, steps: str) -> bool:
        model = model_of(steps)
        each = self._wanted.get(model)
        return model in self.serving and steps != self.serving[model] and not (each and each.steps == steps)

    def _unload_idle(self, stages: Stages) -> None:
        now, leaving = monotonic(), self.leaving(stages)
        idle = {steps for steps in leaving if not num_open(stages, steps)}
        self._idle_since = {steps: self._idle_since.get(steps, now) for steps in idle}
        self._checked = {steps: self._checked.get(steps, now) for steps in leaving}
        self._unloads = {each: job for each, job in self._unloads.items() if each in leaving and not _has_failed(job)}
        for steps in leaving - self._unloads.keys():
            is_idle = now - self._idle_since.get(steps, now) > self._limits.unload_after_s
            if now - self._checked[steps] > (self._limits.unload_after_s if is_idle else self._limits.check_steps_s):
                self._checked[steps] = now
                self._unloads[steps] = self._loads.submit(self._unload, steps, is_idle=is_idle)
        for model in {model for model, steps in self.serving.copy().items() if not steps} - set(map(model_of, leaving)):
            del self.serving[model]

    def _unload(self, steps: str, *, is_idle: bool) -> bool:
        """Unload `steps`. Return False if requests are in them, or if it must be tried again."""
        assert self.files is not None
        model = model_of(steps)
        each = self._wanted.get(model)
        try:
            if each and any(self._control.steps_behind(ensemble) == steps for ensemble in each.ensembles):
                # A swap that an earlier controller began has put them back.
                self.serving.pop(model, None)
                self._due = monotonic()
                return False
            if not is_idle:
                return False
            for stage in STAGES:
                self._control.unload(f"{steps}-{stage}")
        except InferenceServerException as exc:
            log.error("%s: Triton did not unload it: %s", steps, exc.message())
            return False
        remove_steps(self.files.repository, steps)
        self._in_repository.discard(steps)
        log.info("%s: unloaded", steps)
        return True


def _has_failed(job: Future[bool]) -> bool:
    return job.done() and bool(job.exception() or not job.result())


def _log_outcome(outcome: ChangeOutcome, before: Serving) -> None:
    for done in ("added", "changed", "removed"):
        for model in getattr(outcome, done):
            log.info("%s: %s", model, done)
    for line in outcome.warnings if outcome.added or outcome.changed else ():
        log.warning("%s", line)
    for source, problem in outcome.problems.items():
        if before.problems.get(source) != problem:
            log.error("%s", problem)
