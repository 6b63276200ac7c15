"""Triton's model-control API, over gRPC: the one place that uses it."""

import json
import time
from typing import Any

import tritonclient.grpc as triton

from sie_triton.contract import TASKS
from sie_triton.settings import CONTROL_KEY

# Triton wants its key in a header of this name.
HEADER = "triton-grpc-protocol-"

# A new process is there in a second; loading weights before it takes traffic may take minutes.
LOAD_TIMEOUT_S = 600.0


class ModelControl:
    """`token` opens the protocols that the launcher closed to everybody else."""

    def __init__(self, address: str, token: str = "") -> None:
        self._client = triton.InferenceServerClient(address)
        self._headers = {HEADER + CONTROL_KEY: token} if token else None

    def close(self) -> None:
        self._client.close()

    def swap(self, name: str, *, resident: bool = False) -> None:
        """Put a new process in the place of the one that serves `name`, a composing model.

        Triton moves the traffic, lets the old one finish what it has, and ends it. The new one is cold, or loads
        its weights first. Raises tritonclient's InferenceServerException.
        """
        config = self._client.get_model_config(name, as_json=True)["config"]
        # An override that equals the present configuration would do nothing.
        config["parameters"]["generation"] = {"string_value": str(time.time_ns())}
        config["parameters"]["residency"] = {"string_value": "resident" if resident else "on_demand"}
        self._client.load_model(name, config=json.dumps(config), headers=self._headers, client_timeout=LOAD_TIMEOUT_S)

    def unload(self, name: str) -> None:
        """Take a model's ensembles and their steps out of service."""
        options: dict[str, Any] = {"headers": self._headers, "client_timeout": LOAD_TIMEOUT_S}
        index = self._client.get_model_repository_index(as_json=True, **options).get("models", [])
        known = {model["name"] for model in index}
        for each in (name, *(f"{name}-{task}" for task in TASKS)):
            if each in known:
                self._client.unload_model(each, unload_dependents=True, **options)
