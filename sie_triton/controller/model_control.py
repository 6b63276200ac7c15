"""Triton's model-control API over gRPC, which only this module uses, and the end of a Triton that does not answer."""

import json
import logging
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from typing import Any

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton.controller.limits import ControllerLimits
from sie_triton.errors import ServerError
from sie_triton.records.revisions import ensembles_of, model_of
from sie_triton.records.status import STAGES
from sie_triton.settings import CONTROL_KEY
from sie_triton.system.processes.pids import ProcessId

# Prefix of the header in which Triton expects the control key.
HEADER = "triton-grpc-protocol-"

# Reconnect soon to a restarted tritonserver; by default gRPC's backoff grows to two minutes.
CHANNEL = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1000)]

# Triton's state of a model in service, and its reason for a model that was taken out of service.
READY = "READY"
UNLOADED = "unloaded"


class OutOfService(ServerError):
    """Raised by ModelControl.swap if the model was taken out of service, so that there is no process to replace."""


class ModelControl:
    """Client of Triton's model control, on one gRPC channel; `token` opens the restricted protocols.

    The controller's round, its loads and its swaps call it, each on their own threads. Its methods raise tritonclient's
    InferenceServerException, also if Triton takes too long; `answers` raises nothing.

    Loads and unloads take turns: where two meet, Triton may use a model that it has freed, and die
    (docs/decisions/triton.md).
    """

    def __init__(self, address: str, token: str = "", limits: ControllerLimits = ControllerLimits()) -> None:
        self._client = triton.InferenceServerClient(address, channel_args=CHANNEL)
        self._limits, self._lock, self._turn_began = limits, Lock(), 0.0
        self._options: dict[str, Any] = {
            "headers": {HEADER + CONTROL_KEY: token} if token else None,
            "client_timeout": limits.triton_timeout_s,
        }

    def close(self) -> None:
        self._client.close()

    def answers(self, seconds: float = 1.0) -> bool:
        """False if tritonserver has ended, is stopped, or is not ready yet."""
        with suppress(InferenceServerException):
            return bool(self._client.is_server_ready(client_timeout=seconds))
        return False

    def swap(self, name: str, *, resident: bool = False) -> None:
        """Replace the process that serves `name`, a composing model.

        Triton moves the traffic, lets the old process finish its requests, and ends it. The new process is cold, or
        loads its weights if `resident`. Raise OutOfService if the model is out of service.
        """
        with self._turn():
            if config := self._config(name):
                # Triton ignores an override that equals the current configuration.
                config["parameters"]["generation"] = {"string_value": str(time.time_ns())}
                config["parameters"]["residency"] = {"string_value": "resident" if resident else "on_demand"}
                self._load(name, config)
            elif self.index().get(name, UNLOADED) != UNLOADED:
                self._load(name)
            else:
                raise OutOfService(f"{name} was taken out of service")
            self._load_ensembles_of(name.rpartition("-")[0])

    def knows(self, model: str) -> bool:
        """True for a model of the repository, in service or not."""
        return model in self.index()

    def load(self, name: str) -> None:
        """Put an ensemble and its steps, or one step, into service; Triton does not reload unchanged ones."""
        with self._turn():
            self._load(name)

    def unload(self, name: str, *, with_steps: bool = False) -> None:
        """Take an ensemble or a step out of service, known or not; requests in progress are answered."""
        with self._turn():
            self._client.unload_model(name, unload_dependents=with_steps, **self._options)

    def load_all_of(self, model: str) -> None:
        """Put a model's ensembles and their steps into service."""
        for name in self.index().keys() & ensembles_of(model):
            self.load(name)

    def unload_all_of(self, model: str) -> None:
        """Take a model's ensembles and their steps out of service."""
        for name in ensembles_of(model):
            self.unload(name, with_steps=True)
        # A step that was swapped has been loaded by its own name and stays when its ensembles go.
        for name, state in self.index().items():
            steps, _, stage = name.rpartition("-")
            if model_of(steps) == model and stage in STAGES and state != UNLOADED:
                self.unload(name)

    def steps_behind(self, ensemble: str) -> str:
        """Return the prefix of the names of the steps that its requests take; empty if it is out of service."""
        config = self._config(ensemble)
        return _steps_in(config) if config else ""

    def index(self) -> dict[str, str]:
        """Map each model of the repository to READY, or why it is out of service; empty if it was never loaded."""
        index = self._client.get_model_repository_index(as_json=True, **self._options).get("models", [])
        return {model["name"]: _state(model) for model in index}

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Exclude other loads and unloads, but go on beside one that has taken longer than `turn_s`."""
        while not (has_turn := self._lock.acquire(timeout=self._limits.turn_s)):
            if time.monotonic() - self._turn_began > self._limits.turn_s:
                break
        if has_turn:
            self._turn_began = time.monotonic()
        try:
            yield
        finally:
            if has_turn:
                self._lock.release()

    def _load_ensembles_of(self, steps: str) -> None:
        """Load the ensembles of steps, one of which was just loaded.

        Triton has done so itself, but does it again with each load of any model until they were loaded by their names.
        """
        for ensemble in ensembles_of(model_of(steps)):
            if (config := self._config(ensemble)) and _steps_in(config) == steps:
                with suppress(InferenceServerException):
                    self._load(ensemble, config)

    def _load(self, name: str, config: Mapping[str, Any] | None = None) -> None:
        self._client.load_model(name, config=json.dumps(config) if config else None, **self._options)

    def _config(self, name: str) -> dict[str, Any] | None:
        """Return the configuration of a model in service."""
        with suppress(InferenceServerException):
            answer = self._client.get_model_config(name, as_json=True, client_timeout=self._limits.triton_timeout_s)
            config: dict[str, Any] = answer["config"]
            return config
        return None


def _steps_in(ensemble: Mapping[str, Any]) -> str:
    """Return the prefix of the names of the steps of an ensemble with this configuration."""
    first: str = ensemble["ensemble_scheduling"]["step"][0]["model_name"]
    return first.rpartition("-")[0]


def _state(model: Mapping[str, str]) -> str:
    return READY if model.get("state") == READY else model.get("reason", "")


log = logging.getLogger(__name__)


class TritonWatchdog:
    """Asks Triton whether it is alive, over gRPC, on a thread of its own: an answer may take as long as a timeout.

    A tritonserver whose heap is damaged may hang in its own handler of SIGABRT, for ever: gRPC stands still, HTTP says
    that all models are ready. The controller's round sets `triton`, the process that the stages belong to. One that has
    never answered still starts, and one that is stopped (SIGSTOP) may go on; neither is ended.
    """

    def __init__(self, control: ModelControl, limits: ControllerLimits = ControllerLimits()) -> None:
        self.triton: ProcessId | None = None
        self._control, self._limits = control, limits
        self._watched: ProcessId | None = None
        self._has_answered = False
        self._num_silent = 0
        self._closing = Event()
        Thread(target=self._run, name="watch-triton", daemon=True).start()

    def close(self) -> None:
        self._closing.set()

    def look(self) -> None:
        """Ask once; end the process after `max_silent_looks` without an answer."""
        triton = self.triton
        if triton != self._watched:
            self._watched, self._has_answered, self._num_silent = triton, False, 0
        if triton is None or not triton.is_alive or triton.is_stopped:
            return
        if self._control.answers(self._limits.watch_timeout_s):
            self._has_answered, self._num_silent = True, 0
        elif self._has_answered:
            self._num_silent += 1
            if self._num_silent == self._limits.max_silent_looks:
                log.error("tritonserver (process %d) runs and does not answer; ending it", triton.pid)
                triton.send(signal.SIGKILL)

    def _run(self) -> None:
        while not self._closing.wait(self._limits.watch_s):
            self.look()
