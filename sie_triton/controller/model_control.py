"""Triton's model-control API, over gRPC: the one place that uses it."""

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
from sie_triton.settings import CONTROL_KEY

# Triton wants its key in a header of this name.
HEADER = "triton-grpc-protocol-"

# A new process is there in a second; weights are loaded after that. A tritonserver that is stopped answers nothing.
TIMEOUT_S = 60.0
ALIVE_TIMEOUT_S = 1.0

# Another tritonserver in the place of one that ended is found soon; gRPC would wait for up to two minutes.
CHANNEL = [("grpc.initial_reconnect_backoff_ms", 200), ("grpc.max_reconnect_backoff_ms", 1000)]

# What Triton says of a model that somebody took out of service.
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
            if self._index().get(name) == UNLOADED:
                raise NotServed(f"{name} was taken out of service") from None
            self._client.load_model(name, **self._options)
            return
        # An override that equals the present configuration would do nothing.
        config["parameters"]["generation"] = {"string_value": str(time.time_ns())}
        config["parameters"]["residency"] = {"string_value": "resident" if resident else "on_demand"}
        self._client.load_model(name, config=json.dumps(config), **self._options)

    def knows(self, model: str) -> bool:
        """True for a model of the repository, in service or not."""
        return f"{model}-inference" in self._index()

    def load(self, model: str) -> None:
        """Put a model's ensembles and their steps into service."""
        for name in _known(_ensembles(model), self._index()):
            self._client.load_model(name, **self._options)

    def unload(self, model: str) -> None:
        """Take a model's ensembles and their steps out of service."""
        for name in _known(_ensembles(model), self._index()):
            self._client.unload_model(name, unload_dependents=True, **self._options)
        # A step that was swapped has been loaded by its own name and stays when its ensembles go.
        for name, reason in _known([f"{model}-{stage}" for stage in STAGES], self._index()).items():
            if reason != UNLOADED:
                self._client.unload_model(name, **self._options)

    def _index(self) -> dict[str, str]:
        """All models of the repository, and why they are not in service."""
        index = self._client.get_model_repository_index(as_json=True, **self._options).get("models", [])
        return {model["name"]: model.get("reason", "") for model in index}


def _ensembles(model: str) -> list[str]:
    return [model, *(f"{model}-{task}" for task in TASKS)]


def _known(names: list[str], index: Mapping[str, str]) -> dict[str, str]:
    return {name: index[name] for name in names if name in index}
