"""A repository as one writes it by hand: three Python steps and an ensemble, of one text a request and nothing else.

`EMPTY` computes nothing: what is left is Triton's own time. `PLAIN` tokenizes, runs an encoder's graph and takes the
mean, without checks, batches, deadlines or worker. What both leave out is what this project is for, so they are a bound
for its latency.
"""

import json
from pathlib import Path

from sie_triton.catalog import triton_name

EMPTY, PLAIN = "bare/empty", "bare/plain"

# (step, inputs, outputs), each a tensor's name, type and dims.
TEXT = ("text", "TYPE_STRING", [-1])
IDS = ("input_ids", "TYPE_INT64", [-1, -1])
STATES = ("states", "TYPE_FP32", [-1, -1, -1])
DENSE = ("dense", "TYPE_FP32", [-1, -1])
STEPS = (("tokenize", TEXT, IDS), ("encode", IDS, STATES), ("pool", STATES, DENSE))


def write(repository: Path, model: str, weights: Path, graph: Path, num_threads: int) -> None:
    """Of the tokenizer in `weights` and the encoder's `graph`."""
    name, kind = triton_name(model), "Empty" if model == EMPTY else "Plain"
    given = {"weights": str(weights), "graph": str(graph), "threads": str(num_threads)}
    for step, read, written in STEPS:
        directory = repository / f"{name}-{step}"
        (directory / "1").mkdir(parents=True)
        source = f"from sie_triton.bench.handmade.steps import {kind}{step.title()} as TritonPythonModel\n"
        (directory / "1" / "model.py").write_text(source)
        parameters = "".join(
            f'parameters {{ key: "{key}" value {{ string_value: {json.dumps(value)} }} }}\n'
            for key, value in given.items()
        )
        instances = "instance_group { count: 1 kind: KIND_CPU }\n"
        head = f'name: "{directory.name}"\nbackend: "python"\n'
        (directory / "config.pbtxt").write_text(head + _tensors(read, written) + instances + parameters)
    (repository / name / "1").mkdir(parents=True)
    head = f'name: "{name}"\nplatform: "ensemble"\n'
    steps = "".join(_step(f"{name}-{step}", read[0], written[0]) for step, read, written in STEPS)
    (repository / name / "config.pbtxt").write_text(
        head + _tensors(TEXT, DENSE) + f"ensemble_scheduling {{\n{steps}}}\n"
    )


Tensor = tuple[str, str, list[int]]


def _tensors(read: Tensor, written: Tensor) -> str:
    kinds = (("input", read), ("output", written))
    return "".join(
        f'{kind} {{ name: "{name}" data_type: {type_} dims: {dims} }}\n' for kind, (name, type_, dims) in kinds
    )


def _step(name: str, read: str, written: str) -> str:
    maps = f'input_map {{ key: "{read}" value: "{read}" }} output_map {{ key: "{written}" value: "{written}" }}'
    return f'  step {{ model_name: "{name}" model_version: -1 {maps} }}\n'
