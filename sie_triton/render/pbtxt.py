"""ModelSpec → the Triton ModelConfig protobufs of a model: an ensemble for each task, and their three steps."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from sie_triton.contract import (
    COST,
    ENCODE_OUTPUTS,
    LENGTHS,
    QUANTIZED,
    QUERY,
    SCALES,
    SCORES,
    STAMPS,
    TEXT,
    TIMING_MS,
    TOKEN_COUNT,
    Tensor,
)
from sie_triton.families import features
from sie_triton.spec import SPEC_PARAMETER, ModelSpec

STAGES = ("preprocess", "inference", "postprocess")

MAX_QUEUE_DELAY_US = 0


def ensembles(spec: ModelSpec, name: str) -> Iterable[ModelConfig]:
    """The models clients call, one a task over the same steps; the first task has the bare name.

    They have no batch dimension: `reshape` adds it for the steps.
    """
    for task in spec.tasks:
        yield ensemble(spec, task, name, name if task == spec.tasks[0] else f"{name}-{task}")


def ensemble(spec: ModelSpec, task: str, name: str, ensemble_name: str) -> ModelConfig:
    raw = {t.name: f"{t.name}_raw" for t in forward_outputs(spec, task)}
    inputs, outputs = task_inputs(task), [*task_outputs(spec, task), TOKEN_COUNT, TIMING_MS]
    between = {f.name: f.name for f in features(spec)}
    arrival = {COST.name: COST.name, STAMPS.name: "arrival_stamps"}
    steps = [
        _step(name, "preprocess", {t.name: t.name for t in inputs}, between | arrival),
        _step(name, "inference", between | arrival, raw | {STAMPS.name: "inference_stamps"}),
        _step(
            name,
            "postprocess",
            raw | {LENGTHS.name: LENGTHS.name, STAMPS.name: "inference_stamps"},
            {t.name: t.name for t in outputs},
        ),
    ]
    return _model_config(
        {
            "name": ensemble_name,
            "platform": "ensemble",
            "maxBatchSize": 0,
            "input": [_tensor(t) | _reshape(t) for t in inputs],
            "output": [_tensor(t) | _reshape(t) for t in outputs],
            "ensembleScheduling": {"step": steps},
            "parameters": _parameters({"model": spec.model, **(dims(spec) if task == "encode" else {})}),
        }
    )


def composing_models(
    spec: ModelSpec, name: str, *, max_batch_requests: int, max_queue_delay_us: int, residency: str
) -> Iterable[ModelConfig]:
    """preprocess, inference and postprocess, each batching ragged requests.

    Where tasks share them, what only one task sends is optional.
    """
    to_inference = [*features(spec), COST, STAMPS]
    forward = _in_any_task(spec, forward_outputs)
    tensors: Mapping[str, tuple[list[Tensor], list[Tensor]]] = {
        "preprocess": (_in_any_task(spec, lambda _, task: task_inputs(task)), to_inference),
        "inference": (to_inference, [*forward, STAMPS]),
        "postprocess": ([*forward, LENGTHS, STAMPS], [*_in_any_task(spec, task_outputs), TOKEN_COUNT, TIMING_MS]),
    }
    in_all = {TEXT, STAMPS, *to_inference} if len(spec.tasks) > 1 else {t for each, _ in tensors.values() for t in each}
    for stage in STAGES:
        inputs, outputs = tensors[stage]
        yield _model_config(
            {
                "name": f"{name}-{stage}",
                "backend": "python",
                "maxBatchSize": max_batch_requests,
                "input": [_tensor(t) | {"allowRaggedBatch": True, "optional": t not in in_all} for t in inputs],
                "output": [_tensor(t) for t in outputs],
                "instanceGroup": [INSTANCE],
                "dynamicBatching": {"maxQueueDelayMicroseconds": max_queue_delay_us if stage == "inference" else 0},
                "parameters": _parameters(
                    {
                        SPEC_PARAMETER: spec.to_json(),
                        "max_batch_cost": spec.admission_cost,
                        "residency": residency,
                        "generation": 0,
                    }
                ),
            }
        )


def _in_any_task(spec: ModelSpec, tensors: Callable[[ModelSpec, str], list[Tensor]]) -> list[Tensor]:
    return list(dict.fromkeys(tensor for task in spec.tasks for tensor in tensors(spec, task)))


def task_inputs(task: str) -> list[Tensor]:
    """What the client sends."""
    return [QUERY, TEXT] if task == "score" else [TEXT]


def forward_outputs(spec: ModelSpec, task: str) -> list[Tensor]:
    """What inference hands to postprocess."""
    return [SCORES] if task == "score" else [tensor for each in spec.forward_types for tensor in ENCODE_OUTPUTS[each]]


def task_outputs(spec: ModelSpec, task: str) -> list[Tensor]:
    """What the client gets: scores, or each output type, then the quantised forms."""
    if task == "score":
        return [SCORES]
    plain = [tensor for each in spec.output_types for tensor in ENCODE_OUTPUTS[each]]
    quantised = [QUANTIZED[each] for each in spec.output_types if each in QUANTIZED]
    return plain + quantised + [SCALES[each] for each in spec.scaled]


def dims(spec: ModelSpec) -> dict[str, int]:
    """The size of each output, which Triton's own dims leave open."""
    sizes = {"dense": spec.dense_dim, "sparse": spec.sparse_dim, "multivector": spec.multivector_dim}
    if spec.muvera is not None:
        sizes["muvera"] = spec.muvera.dim(spec.multivector_dim)
    return {f"{name}_dim": size for name, size in sizes.items() if size}


def to_text(config: ModelConfig) -> str:
    """The content of config.pbtxt."""
    text: str = text_format.MessageToString(config)
    return text


def from_text(text: str) -> ModelConfig:
    """Raises ValueError where the text is not a Triton model configuration."""
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as exc:
        raise ValueError(str(exc)) from exc


# Where Triton's own process of a stage runs, never more than one. A GPU belongs to the worker that it starts.
INSTANCE = {"count": 1, "kind": "KIND_CPU"}


def _tensor(tensor: Tensor) -> dict[str, Any]:
    data_type = "TYPE_STRING" if tensor.dtype == "BYTES" else f"TYPE_{tensor.dtype}"
    return {"name": tensor.name, "dataType": data_type, "dims": list(tensor.dims)}


def _reshape(tensor: Tensor) -> dict[str, Any]:
    return {"reshape": {"shape": [1, *tensor.dims]}}


def _step(name: str, stage: str, inputs: dict[str, str], outputs: dict[str, str]) -> dict[str, Any]:
    return {"modelName": f"{name}-{stage}", "modelVersion": -1, "inputMap": inputs, "outputMap": outputs}


def _parameters(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: {"stringValue": str(value)} for key, value in values.items()}


def _model_config(fields: dict[str, Any]) -> ModelConfig:
    return json_format.ParseDict(fields, ModelConfig())
