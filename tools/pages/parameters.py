"""docs/parameters.md: tensors and request parameters of the contract and of every family."""

from collections.abc import Iterable

from sie_triton.contract import ENCODE_OUTPUTS, ITEMS, LORA, PAGES, VERBS, Extraction, Model, Parameter
from sie_triton.contract.spec import ModelSpec, MuveraConfig
from sie_triton.contract.tensors import (
    ENTITIES,
    EXTRACTION,
    LABELS,
    NUM_PAGES,
    PAGE_NUMBERS,
    QUERY,
    QUERY_IMAGE,
    SCORES,
    TIMING_FIELDS,
    TIMING_MS,
    TOKEN_COUNT,
    TRUNCATED,
    Tensor,
)
from sie_triton.models.families import FAMILIES, family
from tools.pages.tables import table

INTRODUCTION = """\
# Tensors and parameters

<!-- Generated from sie_triton/contract/ and sie_triton/models/families/ by `python -m tools.pages`. -->

This is the contract for Triton's own clients; `SIEClient` and the door translate to it. `n` is the number of items
in a request. `org/name` is served as the ensemble `org__name`; a model with several tasks has `org__name` for the
first of encode, score and extract, and `org__name-score` or `org__name-extract` for the others. The steps of an
ensemble (`-preprocess`, `-inference`, `-postprocess`) are Triton models too, and accept only what the step before
them sent. Triton never answers a request to a step that holds no batch (shape `[0, 0]`), so give every request a
deadline.

**The parameter `output_types` chooses outputs; the list of requested outputs does not**: a step of a Triton ensemble
cannot see which outputs a client requested. Without the parameter a request gets every output that the model, or the
request's profile, names; an output that `output_types` leaves out is empty. An unknown or wrong parameter is refused
as INVALID_ARG, with its name and the allowed values.

Parameters are strings, booleans, integers and floats: over HTTP `"parameters": {"threshold": 0.5}` beside `"inputs"`,
with tritonclient `infer(…, parameters={"threshold": 0.5})`. A parameter that is a JSON object is sent as a string:
`{"label_thresholds": "{\\"person\\": 0.5}"}`. Triton's own parameter `timeout`, in microseconds, is the deadline of the
request: `"parameters": {"timeout": 5000000}`, or `infer(…, timeout=5_000_000)`
([deadlines](operating.md#deadlines-and-retries)).
"""

QUANTIZED = """
A `_quantized` tensor holds rows of bytes in the requested `output_dtype`: read them with `.view("<f2")` (float16),
`.view(np.int8)` (int8, binary) or as they are (uint8, ubinary). Then the tensor without the suffix is empty, and the
`_quantized` one is empty for float32. A `_scales` tensor exists where the model file says `scales: true` beside `dim`;
`muvera_scales` exists where `multivector` has scales. An int8 or uint8 entry q stands for scales[1] + scales[0] · q.
[Encode](encode.md#quantized-output) has the formulas.
"""

TIMING = f"""
`{TIMING_MS.name}` holds {", ".join(TIMING_FIELDS)}. *preprocess*, *inference* and *postprocess* are the times in these
steps, *total* is the time from preprocess to the answer. Between preprocess and its forward pass a request waits:
*queue* is the part of this wait in which the model computed other requests, *loading* the part in which its weights
were loaded, *batch_wait* the part in which it was idle.
"""

OF_ALL = """
`lora` is taken by models that take [LoRA adapters](loras.md), `pages` by models that read images.
"""

# Allowed values that depend on the model.
OF_MODEL = {
    "instruction": "a string of at most 16 characters for each token that the model reads",
    "profile": "the name of a profile of the model",
    "output_types": "a comma-separated list of outputs that the model has",
    "dimensions": "an integer from 1 to the dimension of the model",
}

# A model with every output and task.
SPEC = ModelSpec(
    model="BAAI/bge-m3",
    weights="",
    family="bge_m3",
    dims={"dense": 1024, "sparse": 250_002, "multivector": 1024, "muvera": 10_240},
    max_sequence_length=8192,
    max_batch_cost=16_384,
    tasks=tuple(VERBS),
    score_modes=("dense", "sparse", "colbert", "hybrid"),
    muvera=MuveraConfig(),
)
MODEL = Model(SPEC, (), ENCODE_OUTPUTS, extraction=Extraction(labels="optional"), takes_loras=True)


def page() -> str:
    inputs = (*ITEMS.values(), QUERY, QUERY_IMAGE, LABELS, ENTITIES)
    encoded = [
        tensor
        for output in ENCODE_OUTPUTS.values()
        for tensor in (*output.tensors, output.quantized, output.scales)
        if tensor is not None
    ]
    of_all = (NUM_PAGES, PAGE_NUMBERS, TOKEN_COUNT, TRUNCATED, TIMING_MS)
    sections = [
        ("Inputs", _tensors(inputs), ""),
        ("Outputs of encode", _tensors(encoded), QUANTIZED),
        ("Outputs of score and extract", _tensors((SCORES, EXTRACTION)), ""),
        ("Outputs of every task", _tensors(of_all), TIMING),
        ("Parameters of every task", _parameters(_common_parameters()), OF_ALL),
        *((f"Parameters of {name}", _parameters(_verb_parameters(name)), "") for name in VERBS),
        ("Parameters of families", _family_table(), ""),
    ]
    return INTRODUCTION + "".join(f"\n## {title}\n\n{text}{more}" for title, text, more in sections)


def _tensors(tensors: Iterable[Tensor]) -> str:
    return table(["tensor", "type", "content"], ([f"`{each.name}`", each.dtype, each.doc] for each in tensors))


def _parameters(parameters: Iterable[Parameter]) -> str:
    return table(["parameter", "allowed", "effect"], (_row(each) for each in parameters))


def _row(parameter: Parameter) -> list[str]:
    allowed = OF_MODEL.get(parameter.name) or parameter.allowed()
    return [f"`{parameter.name}`", allowed, parameter.doc]


def _common_parameters() -> list[Parameter]:
    """Parameters of every verb; LORA and PAGES if the model takes adapters, and if it reads images."""
    first, *others = (VERBS[name].parameters(MODEL) for name in VERBS)
    return [each for each in (*first, PAGES) if each in (LORA, PAGES) or all(each in other for other in others)]


def _verb_parameters(name: str) -> list[Parameter]:
    return [each for each in VERBS[name].parameters(MODEL) if each not in _common_parameters()]


def _family_table() -> str:
    """Return one row for each parameter and effect of families, with the families that take it."""
    takers: dict[tuple[str, ...], list[str]] = {}
    for name in FAMILIES:
        for parameter in family(name).parameters:
            takers.setdefault(tuple(_row(parameter)), []).append(name)
    rows = [[*row, ", ".join(names)] for row, names in takers.items()]
    return table(["parameter", "allowed", "effect", "families"], sorted(rows))
