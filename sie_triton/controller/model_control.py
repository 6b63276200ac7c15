"""Triton's model-control API, over gRPC: the one place that uses it."""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton.contract import TASKS
from sie_triton.editions import model_of
from sie_triton.errors import ServerError
from sie_triton.records.status import STAGES
from sie_triton.settings import CONTROL_KEY

# Triton wants its key in a header of this name.
HEADER = "triton-grpc-protocol-"

# A new process is there in a second; weights are loaded after that. A tritonserver that is stopped answers nothing.
TIMEOUT_S = 60.0
ALIVE_TIMEOUT_S = 1.0

# Another tritonserver in the place of one that ended is found soon; gRPC would wait for up to two minutes.
CHANNEL = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1000)]

# What Triton says of a model that serves, and why one does not that somebody took out of service.
READY = "READY"
UNLOADED = "unloaded"


class NotServed(ServerError):
    """Raised by ModelControl.swap: somebody took the model out of service, so there is no process to replace."""


class ModelControl:
    """One gRPC channel to Triton's model control. `token` opens the protocols that the launcher closed to others.

    The controller's round, its loads and its swaps call it, each on threads of their own. Its methods raise
    tritonclient's InferenceServerException, also where Triton takes longer than TIMEOUT_S; `answers` raises nothing.
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
        """False where tritonserver is gone, stopped, or not ready yet."""
        with suppress(InferenceServerException):
            return bool(self._client.is_server_ready(client_timeout=ALIVE_TIMEOUT_S))
        return False

    def swap(self, name: str, *, resident: bool = False) -> None:
        """Put a new process in the place of the one that serves `name`, a composing model.

        Triton moves the traffic, lets the old one finish what it has, and ends it. The new one is cold, or begins
        to load its weights. NotServed if there is no place for it.
        """
        try:
            config = self._client.get_model_config(name, as_json=True, client_timeout=TIMEOUT_S)["config"]
        except InferenceServerException:
            if self.index().get(name, UNLOADED) == UNLOADED:
                raise NotServed(f"{name} was taken out of service") from None
            self.load(name)
            return
        # An override that equals the present configuration would do nothing.
        config["parameters"]["generation"] = {"string_value": str(time.time_ns())}
        config["parameters"]["residency"] = {"string_value": "resident" if resident else "on_demand"}
        self._client.load_model(name, config=json.dumps(config), **self._options)

    def knows(self, model: str) -> bool:
        """True for a model of the repository, in service or not."""
        return model in self.index()

    def load(self, name: str) -> None:
        """Put an ensemble and its steps into service, or one step; nothing happens to what has not changed since."""
        self._client.load_model(name, **self._options)

    def unload(self, name: str) -> None:
        """Take an ensemble or a step out of service, known or not; what is in progress is answered."""
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
        """What the names of the steps begin with that its requests take; empty where it is not in service."""
        with suppress(InferenceServerException):
            config = self._client.get_model_config(ensemble, as_json=True, client_timeout=TIMEOUT_S)["config"]
            first: str = config["ensemble_scheduling"]["step"][0]["model_name"]
            return first.rpartition("-")[0]
        return ""

    def index(self) -> dict[str, str]:
        """All of the repository: READY, or why it is not in service; empty where nobody has tried."""
        index = self._client.get_model_repository_index(as_json=True, **self._options).get("models", [])
        return {model["name"]: _state(model) for model in index}


def ensembles_of(model: str) -> list[str]:
    """All that a model may have."""
    return [model, *(f"{model}-{task}" for task in TASKS)]


def _state(model: Mapping[str, str]) -> str:
    return READY if model.get("state") == READY else model.get("reason", "")
