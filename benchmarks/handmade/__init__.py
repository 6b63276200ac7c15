"""Minimal repositories as written by hand: three Python steps and an ensemble.

`EMPTY` computes nothing, so that only Triton's own time is left. `PLAIN` tokenizes, runs an encoder's graph and takes
the mean, without checks, batches, deadlines or worker. Both take one text per request, and are a lower bound for the
latency of this project, which adds these. `LIMIT` computes nothing either, for any number of texts, and Triton batches
its requests as it does for this project: the upper bound of the throughput of three steps. `LIBRARY` is the usual
repository of one Python step, which computes with transformers what Triton has batched.
"""

from pathlib import Path
from typing import Any

from sie_triton.contract.names import triton_name
from sie_triton.pipeline.render.pbtxt import INSTANCE, model_config, parameters_of, step_of, to_text

ROOT = Path(__file__).parents[2]

EMPTY, PLAIN, LIMIT, LIBRARY = "bare/empty", "bare/plain", "bare/limit", "bare/library"

TEXT: dict[str, Any] = {"name": "text", "dataType": "TYPE_STRING", "dims": [-1]}
IDS: dict[str, Any] = {"name": "input_ids", "dataType": "TYPE_INT64", "dims": [-1, -1]}
STATES: dict[str, Any] = {"name": "states", "dataType": "TYPE_FP32", "dims": [-1, -1, -1]}
DENSE: dict[str, Any] = {"name": "dense", "dataType": "TYPE_FP32", "dims": [-1, -1]}

# (step, input, output)
STEPS = (("tokenize", TEXT, IDS), ("encode", IDS, STATES), ("pool", STATES, DENSE))

# Of LIMIT: one row for each text.
FEATURES, ROWS = ({"name": name, "dataType": "TYPE_FP32", "dims": [-1, -1]} for name in ("features", "rows"))
LIMIT_STEPS = (("preprocess", TEXT, FEATURES), ("inference", FEATURES, ROWS), ("postprocess", ROWS, DENSE))


def write(repository: Path, model: str, weights: Path, graph: Path, num_threads: int) -> None:
    """Write the steps and the ensemble of `model`, with the tokenizer in `weights` and the encoder's `graph`."""
    name, kind = triton_name(model), "Empty" if model == EMPTY else "Plain"
    parameters = parameters_of({"weights": weights, "graph": graph, "threads": num_threads})
    for step, read, written in STEPS:
        directory = _written(
            repository,
            {
                "name": f"{name}-{step}",
                "backend": "python",
                "input": [read],
                "output": [written],
                "instanceGroup": [INSTANCE],
                "parameters": parameters,
            },
        )
        _write_model(directory, "steps", f"{kind}{step.title()}")
    steps = [step_of(name, step, _identity_map(read), _identity_map(written)) for step, read, written in STEPS]
    fields = {"name": name, "platform": "ensemble", "input": [TEXT], "output": [DENSE]}
    _written(repository, {**fields, "ensembleScheduling": {"step": steps}})


def _written(repository: Path, fields: dict[str, Any]) -> Path:
    directory: Path = repository / fields["name"]
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text(to_text(model_config(fields)))
    return directory


def _write_model(directory: Path, module: str, kind: str) -> None:
    """Write the program of a model: the class `kind` of this package, which Triton's processes would not find."""
    found = f"import sys\n\nsys.path.insert(0, {str(ROOT)!r})\n"
    source = f"{found}from benchmarks.handmade.{module} import {kind} as TritonPythonModel\n"
    (directory / "1" / "model.py").write_text(source)


def _identity_map(tensor: dict[str, Any]) -> dict[str, str]:
    return {tensor["name"]: tensor["name"]}


def write_limit(repository: Path, max_batch_requests: int = 64) -> None:
    """Write the steps and the ensemble of LIMIT, whose batches are as those of this project."""
    name = triton_name(LIMIT)
    for step, read, written in LIMIT_STEPS:
        directory = _written(
            repository,
            {
                "name": f"{name}-{step}",
                "backend": "python",
                "maxBatchSize": max_batch_requests,
                "input": [{**read, "allowRaggedBatch": True}],
                "output": [written],
                "instanceGroup": [INSTANCE],
                "dynamicBatching": {"maxQueueDelayMicroseconds": 0},
            },
        )
        _write_model(directory, "steps", f"Limit{step.title()}")
    steps = [step_of(name, step, _identity_map(read), _identity_map(written)) for step, read, written in LIMIT_STEPS]
    given, answered = {**TEXT, "reshape": {"shape": [1, -1]}}, {**DENSE, "reshape": {"shape": [1, -1, -1]}}
    fields = {"name": name, "platform": "ensemble", "input": [given], "output": [answered]}
    _written(repository, {**fields, "ensembleScheduling": {"step": steps}})


def write_library(repository: Path, weights: Path, device: str, precision: str, max_batch_requests: int = 64) -> None:
    """Write the model LIBRARY, whose weights are in the directory `weights`."""
    directory = _written(
        repository,
        {
            "name": triton_name(LIBRARY),
            "backend": "python",
            "maxBatchSize": max_batch_requests,
            "input": [{**TEXT, "allowRaggedBatch": True}],
            "output": [DENSE],
            "instanceGroup": [INSTANCE],
            "dynamicBatching": {"maxQueueDelayMicroseconds": 0},
            "parameters": parameters_of({"weights": weights, "device": device, "precision": precision}),
        },
    )
    _write_model(directory, "library", "LibraryEncode")
