"""Triton's model-control API over gRPC; only this module uses it."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton.contract import TASKS
from sie_triton.errors import ServerError
from sie_triton.records.status import STAGES
from sie_triton.serving.revisions import model_of
from sie_triton.settings import CONTROL_KEY

# Prefix of the header in which Triton expects the control key.
HEADER = "triton-grpc-protocol-"

# Timeouts in seconds. A new process takes a second; weights are loaded later. A stopped tritonserver never answers.
TIMEOUT_S = 60.0
ALIVE_TIMEOUT_S = 1.0

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
    InferenceServerException, also if Triton takes longer than TIMEOUT_S; `answers` raises nothing.
    """

    def __init__(self, address: str, token: str = "") -> None:
        self._client = triton.InferenceServerClient(address, channel_args=CHANNEL)
        self._options: dict[str, Any] = {
            "headers": {HEADER + CONTROL_KEY: token} if token else None,
            "client_timeout": TIMEOUT_S,
        }

    def close(self) -> None:
        self._client.close()

    def answers(self) -> bool:
        """False if tritonserver has ended, is stopped, or is not ready yet."""
        with suppress(InferenceServerException):
            return bool(self._client.is_server_ready(client_timeout=ALIVE_TIMEOUT_S))
        return False

    def swap(self, name: str, *, resident: bool = False) -> None:
        """Replace the process that serves `name`, a composing model.

        Triton moves the traffic, lets the old process finish its requests, and ends it. The new process is cold, or
        loads its weights if `resident`. Raise NotServed if the model is out of service.
        """
        try:
            config = self._client.get_model_config(name, as_json=True, client_timeout=TIMEOUT_S)["config"]
        except InferenceServerException:
            if self.index().get(name, UNLOADED) == UNLOADED:
                raise OutOfService(f"{name} was taken out of service") from None
            self.load(name)
            return
        # Triton ignores an override that equals the current configuration.
        config["parameters"]["generation"] = {"string_value": str(time.time_ns())}
        config["parameters"]["residency"] = {"string_value": "resident" if resident else "on_demand"}
        self._client.load_model(name, config=json.dumps(config), **self._options)

    def knows(self, model: str) -> bool:
        """True for a model of the repository, in service or not."""
        return model in self.index()

    def load(self, name: str) -> None:
        """Put an ensemble and its steps, or one step, into service; Triton does not reload unchanged ones."""
        self._client.load_model(name, **self._options)

    def unload(self, name: str) -> None:
        """Take an ensemble or a step out of service, known or not; requests in progress are answered."""
        self._client.unload_model(name, **self._options)

    def load_all_of(self, model: str) -> None:
        """Put a model's ensembles and their steps into service."""
        for name in self.index().keys() & ensembles_of(model):
            self.load(name)

    def unload_all_of(self, model: str) -> None:
        """Take a model's ensembles and their steps out of service."""
        for name in ensembles_of(model):
            self._client.unload_model(name, unload_dependents=True, **self._options)
        # A step that was swapped has been loaded by its own name and stays when its ensembles go.
        for name, state in self.index().items():
            steps, _, stage = name.rpartition("-")
            if model_of(steps) == model and stage in STAGES and state != UNLOADED:
                self.unload(name)

    def steps_behind(self, ensemble: str) -> str:
        """Return the prefix of the names of the steps that its requests take; empty if it is out of service."""
        with suppress(InferenceServerException):
            config = self._client.get_model_config(ensemble, as_json=True, client_timeout=TIMEOUT_S)["config"]
            first: str = config["ensemble_scheduling"]["step"][0]["model_name"]
            return first.rpartition("-")[0]
        return ""

    def index(self) -> dict[str, str]:
        """Map each model of the repository to READY, or why it is out of service; empty if it was never loaded."""
        index = self._client.get_model_repository_index(as_json=True, **self._options).get("models", [])
        return {model["name"]: _state(model) for model in index}


def ensembles_of(model: str) -> list[str]:
    """Return the names of all ensembles that a model may have."""
    return [model, *(f"{model}-{task}" for task in TASKS)]


def _state(model: Mapping[str, str]) -> str:
    return READY if model.get("state") == READY else model.get("reason", "")
