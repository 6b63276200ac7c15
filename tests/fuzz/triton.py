"""A door's backend before pipelines in this process: it gets Triton's own messages, and answers with them."""

from collections.abc import Mapping
from time import monotonic
from types import SimpleNamespace
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2
from tritonclient.utils import deserialize_bytes_tensor

from sie_triton.client import grpc_aio
from sie_triton.client.failures import NotServed
from sie_triton.contract import VERBS
from sie_triton.contract.error_prefix import with_prefix, without_prefix
from sie_triton.contract.names import sie_name
from sie_triton.doors.backend import States
from sie_triton.doors.triton import TritonBackend
from sie_triton.errors import SIEError
from sie_triton.records.revisions import model_of
from sie_triton.settings import Settings
from tests.fuzz.pipeline import Pipeline
from tests.support.joined import add, of_bytes

DTYPES = {"f": "FP32", "i": "INT32", "u": "UINT8", "b": "BOOL", "O": "BYTES"}
TRAFFIC = {"requests": 1, "latency_ms": {"p50": 1.0}}


class LocalBackend(TritonBackend):
    """The door's real backend and client; only the connection is another one."""

    def __init__(self, settings: Settings, models: Mapping[str, Pipeline]) -> None:
        super().__init__(settings)
        connection = Connection(models)
        self._triton._opened = self._questions = connection  # type: ignore[assignment]
        self._triton._controller = None
        self._resident = {each.spec.model for each in models.values()}

    def metric_parts(self) -> dict[str, Any]:
        return {}

    async def states(self) -> States:
        known = {"state": "resident", "memory_bytes": 1, "pending": 0, "traffic": TRAFFIC}
        memory = {"limit_bytes": 10, "used_bytes": 1, "source": "test"}
        return States({"org/broken": "invalid"}, dict.fromkeys(self._resident, known), memory, monotonic())


class Connection:
    """Stands for AsyncConnection. Models are named as Triton names them, `org__model` and `org__model-verb`."""

    triton = grpc_aio
    is_met = hangs_up = True

    def __init__(self, models: Mapping[str, Pipeline]) -> None:
        self._models = {each.spec.model.replace("/", "__"): each for each in models.values()}

    async def close(self) -> None:
        pass

    async def ask(self, method: str, deadline: Any, **arguments: Any) -> Any:
        return getattr(self, f"_{method}")(**arguments)

    def _is_server_live(self) -> bool:
        return True

    def _get_server_metadata(self) -> Any:
        return SimpleNamespace(version="2.51.0")

    def _get_inference_statistics(self) -> Any:
        return SimpleNamespace(model_stats=[SimpleNamespace(name=name) for name in self._models])

    def _is_model_ready(self, model_name: str) -> bool:
        return self._found(model_name) is not None

    def _get_model_config(self, model_name: str) -> Any:
        response, (name, _, step) = service_pb2.ModelConfigResponse(), model_name.rpartition("-")
        if step == "preprocess" and name in self._models:
            response.config.parameters["sie_spec"].string_value = self._models[name].spec.to_json()
        else:
            self._verb(model_name)
            response.config.ensemble_scheduling.step.add(model_name=f"{model_name}-preprocess")
        return response

    def _get_model_metadata(self, model_name: str) -> Any:
        model, verb = self._verb(model_name)
        names = [tensor.name for tensor in VERBS[verb].inputs(model.spec.inputs)]
        return SimpleNamespace(inputs=[SimpleNamespace(name=name) for name in names])

    def _infer(
        self, model_name: str, inputs: Any, parameters: Any = None, timeout: int | None = None
    ) -> grpc_aio.InferResult:
        sent = grpc_aio.request_of(model_name, inputs, parameters or {}, timeout)
        message = service_pb2.ModelInferRequest.FromString(sent.SerializeToString())
        model, verb = self._verb(message.model_name)
        arrays = {
            each.name: deserialize_bytes_tensor(raw).reshape(1, *each.shape) if raw else np.zeros((1, 0), np.object_)
            for each, raw in zip(message.inputs, message.raw_input_contents, strict=True)
        }
        given = {name: getattr(each, each.WhichOneof("parameter_choice")) for name, each in message.parameters.items()}
        try:
            outputs = model.answer(VERBS[verb], given, arrays, given.pop("timeout", 0))
        except SIEError as exc:
            raise without_prefix(with_prefix(exc)) or exc from exc
        return grpc_aio.InferResult(response_of(outputs))

    def _found(self, model_name: str) -> tuple[Pipeline, str] | None:
        """Return the model and the verb of an ensemble; None if there is none."""
        if model_name in self._models:
            return self._models[model_name], self._models[model_name].spec.tasks[0]
        name, _, task = model_name.rpartition("-")
        model = self._models.get(name)
        return (model, task) if model and task in model.spec.tasks[1:] else None

    def _verb(self, model_name: str) -> tuple[Pipeline, str]:
        if (found := self._found(model_name)) is None:
            raise NotServed(f"Request for unknown model: '{sie_name(model_of(model_name))}' is not found")
        return found


def response_of(outputs: Mapping[str, Any]) -> Any:
    """Return Triton's message with these arrays."""
    response = service_pb2.ModelInferResponse(model_version="1")
    for name, array in outputs.items():
        raw = of_bytes(array.ravel().tolist()) if array.dtype == np.object_ else array.tobytes()
        add(response, name, DTYPES[array.dtype.kind], array.shape, raw)
    return response
