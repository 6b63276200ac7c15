"""Convert a ModelSpec to Triton's ModelConfig protobufs: an ensemble for each task, and the three shared steps."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from sie_triton.contract import VERBS, Model, Verb, common_outputs
from sie_triton.contract.spec import SPEC_PARAMETER, ModelSpec
from sie_triton.contract.tensors import MESSAGE, Tensor
from sie_triton.models.families import model_of
from sie_triton.records.status import STAGES


def ensembles(spec: ModelSpec, name: str, steps: str) -> Iterable[ModelConfig]:
    """Yield the models that clients call: one per task, over the same `steps`; the first task has the bare name.

    They have no batch dimension: `reshape` adds it for the steps.
    """
    model = model_of(spec)
    for task in spec.tasks:
        yield ensemble(model, VERBS[task], steps, name if task == spec.tasks[0] else f"{name}-{task}")


def ensemble(model: Model, verb: Verb, name: str, ensemble_name: str) -> ModelConfig:
    """Return the ensemble of one verb; `name` is the prefix of the steps' names."""
    inputs = verb.inputs(model.spec.inputs)
    optional = {"optional": True} if _may_lack(inputs) else {}
    outputs = [*verb.outputs(model), *common_outputs(model)]
    asked = {tensor.name: f"asked_{tensor.name}" for tensor in _asked(model)}
    computed = {MESSAGE.name: f"computed_{MESSAGE.name}"}
    # The steps recognise the verb by the names that its inputs have there.
    entry, passed_on = ({verb.input_name(t): t.name for t in each} for each in (inputs, verb.passed_on(model)))
    steps = [
        step_of(name, "preprocess", entry, asked),
        step_of(name, "inference", asked, computed),
        step_of(name, "postprocess", computed | passed_on, {t.name: t.name for t in outputs}),
    ]
    return model_config(
        {
            "name": ensemble_name,
            "platform": "ensemble",
            "maxBatchSize": 0,
            "input": [_tensor(t) | _reshape(t) | optional for t in inputs],
            "output": [_tensor(t) | _reshape(t) for t in outputs],
            "ensembleScheduling": {"step": steps},
            "parameters": parameters_of({"model": model.spec.model, "verb": verb.name, **_dims(model, verb)}),
        }
    )


def composing_models(
    spec: ModelSpec,
    name: str,
    *,
    max_batch_requests: int,
    max_queue_delay_us: int,
    residency: str,
    at_start: bool = True,
) -> Iterable[ModelConfig]:
    """Yield preprocess, inference and postprocess, each with ragged batching; `name` is the prefix of their names.

    If several verbs share the steps, a tensor that only one verb sends is optional. Triton waits for weights only
    `at_start`.
    """
    tensors, optional = _step_tensors(spec)
    parameters = {
        SPEC_PARAMETER: spec.to_json(),
        "max_batch_cost": spec.admission_cost,
        "residency": residency,
        "generation": 0 if at_start else 1,
    }
    for stage in STAGES:
        inputs, given = tensors[stage]
        yield model_config(
            {
                "name": f"{name}-{stage}",
                "backend": "python",
                "maxBatchSize": max_batch_requests,
                "input": [_tensor(t) | {"allowRaggedBatch": True, "optional": t in optional} for t in inputs],
                "output": [_tensor(t) for t in given],
                "instanceGroup": [INSTANCE],
                "dynamicBatching": {"maxQueueDelayMicroseconds": max_queue_delay_us if stage == "inference" else 0},
                "parameters": parameters_of(parameters),
            }
        )


def _step_tensors(spec: ModelSpec) -> tuple[Mapping[str, tuple[list[Tensor], list[Tensor]]], set[Tensor]]:
    """Return the inputs and outputs of each step, and the inputs that a request may lack."""
    model, verbs = model_of(spec), [VERBS[task] for task in spec.tasks]
    of_verbs = {verb.name: [_entry(verb, tensor) for tensor in verb.inputs(spec.inputs)] for verb in verbs}
    entry = [tensor for inputs in of_verbs.values() for tensor in inputs]
    passed_on = [_entry(verb, tensor) for verb in verbs for tensor in verb.passed_on(model)]
    outputs = list(dict.fromkeys(tensor for verb in verbs for tensor in verb.outputs(model)))
    tensors = {
        "preprocess": (entry, _asked(model)),
        "inference": (_asked(model), [MESSAGE]),
        "postprocess": ([MESSAGE, *passed_on], [*outputs, *common_outputs(model)]),
    }
    of_one_verb = set(entry) if len(verbs) > 1 else set()
    may_lack = {tensor for inputs in of_verbs.values() if _may_lack(inputs) for tensor in inputs}
    return tensors, of_one_verb | may_lack


def _may_lack(inputs: Iterable[Tensor]) -> bool:
    """Return whether one of a verb's inputs is optional: then all of them must be optional for Triton.

    Triton only counts inputs, so that one input could replace another. Preprocess reports a missing input.
    """
    return any(tensor.optional for tensor in inputs)


def _entry(verb: Verb, tensor: Tensor) -> Tensor:
    return replace(tensor, name=verb.input_name(tensor))


def _asked(model: Model) -> list[Tensor]:
    """Return the tensors that preprocess sends to inference: a message, and the large features."""
    return [MESSAGE, *(tensor for tensor in model.features if tensor.is_large)]


def _dims(model: Model, verb: Verb) -> dict[str, int]:
    """Return the size of each output, which is variable (-1) in Triton's dims."""
    names = {tensor.name for tensor in verb.outputs(model)}
    return {
        f"{name}_dim": model.spec.dims[name]
        for name, output in model.outputs.items()
        if names.issuperset(tensor.name for tensor in output.tensors)
    }


def to_text(config: ModelConfig) -> str:
    text: str = text_format.MessageToString(config)
    return text


def from_text(text: str) -> ModelConfig:
    """Parse the contents of a config.pbtxt; ValueError if they are not a Triton model configuration."""
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as exc:
        raise ValueError(str(exc)) from exc


# A stage has one Triton process, on the CPU. Only the worker that it starts uses a GPU.
INSTANCE = {"count": 1, "kind": "KIND_CPU"}


def _tensor(tensor: Tensor) -> dict[str, Any]:
    data_type = "TYPE_STRING" if tensor.dtype == "BYTES" else f"TYPE_{tensor.dtype}"
    return {"name": tensor.name, "dataType": data_type, "dims": list(tensor.dims)}


def _reshape(tensor: Tensor) -> dict[str, Any]:
    return {"reshape": {"shape": [1, *tensor.dims]}}


def step_of(name: str, stage: str, inputs: dict[str, str], outputs: dict[str, str]) -> dict[str, Any]:
    return {"modelName": f"{name}-{stage}", "modelVersion": -1, "inputMap": inputs, "outputMap": outputs}


def parameters_of(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: {"stringValue": str(value)} for key, value in values.items()}


def model_config(fields: dict[str, Any]) -> ModelConfig:
    return json_format.ParseDict(fields, ModelConfig())
