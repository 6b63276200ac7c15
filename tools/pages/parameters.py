"""docs/parameters.md: tensors and request parameters of the contract and of every family."""

from collections.abc import Iterable

from sie_triton.contract import (
    ENCODE_OUTPUTS,
    ITEMS,
    LORA,
    PAGES,
    TRUNCATION_SIDE,
    VERBS,
    Extraction,
    Model,
    Parameter,
)
from sie_triton.contract.spec import ModelSpec, MuveraConfig
from sie_triton.contract.tensors import (
    CHUNKS,
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

INTRODUCTION = """\
# Tensors and parameters

<!-- Generated from sie_triton/contract/ and sie_triton/models/families/ by `python -m tools.pages`. -->

The contract for Triton's own clients; `n` is the number of items. `org/name` is the ensemble `org__name`; of several
tasks, the first of encode, score and extract is `org__name`, the others `org__name-score` and `org__name-extract`.
Triton never answers a request to a step without a batch (shape `[0, 0]`): give every request a deadline.

**The parameter `output_types` chooses outputs; Triton's list of requested outputs does not.** Without it a request gets
every output that the model, or the request's profile, names; others are empty.

Parameters are strings, booleans, integers and numbers: over HTTP `"parameters": {"threshold": 0.5}` beside `"inputs"`,
with tritonclient `infer(…, parameters={"threshold": 0.5})`. A JSON object is sent as a string:
`{"label_thresholds": "{\\"person\\": 0.5}"}`. Triton's own parameter `timeout`, in microseconds, is the
[deadline](operating.md#deadlines-and-retries).
"""

QUANTIZED = """
With [`output_dtype`](encode.md#quantized-output), the rows of `dense`, `multivector` and `muvera` are bytes in
`NAME_quantized` (UINT8), and the tensor `NAME` is empty. Read them with `.view("<f2")` (float16), `.view(np.int8)`
(int8, binary) or as they are (uint8, ubinary). `NAME_scales` (FP32, two a row) exists where the model file says
`scales: true`: an int8 or uint8 entry q stands for scales[1] + scales[0] · q.
"""

TIMING = f"""
`{TIMING_MS.name}` holds {", ".join(TIMING_FIELDS)}. *preprocess*, *inference* and *postprocess* are the times in these
steps, *total* is from preprocess to the answer. A request waits *queue* while the model computes others, *loading*
while its weights are loaded, *batch_wait* while it is idle.
"""

# Allowed values that depend on the model.
OF_MODEL = {
    "instruction": "at most 16 characters for each token that the model reads",
    "profile": "the model's profiles",
    "output_types": "the model's outputs, comma-separated",
    "dimensions": "integer from 1 to the model's dimension",
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
MODEL = Model(SPEC, (), ENCODE_OUTPUTS, (TRUNCATION_SIDE,), extraction=Extraction(labels="optional"), takes_loras=True)


def page() -> str:
    inputs = (*ITEMS.values(), QUERY, QUERY_IMAGE, LABELS, ENTITIES)
    encoded = [tensor for output in ENCODE_OUTPUTS.values() for tensor in output.tensors]
    of_all = (CHUNKS, NUM_PAGES, PAGE_NUMBERS, TOKEN_COUNT, TRUNCATED, TIMING_MS)
    sections = [
        ("Inputs", _tensors(inputs), ""),
        ("Outputs", _tensors((*encoded, SCORES, EXTRACTION, *of_all)), QUANTIZED + TIMING),
        ("Parameters of every task", _parameters(_common_parameters()), ""),
        *((f"Parameters of {name}", _parameters(_verb_parameters(name)), "") for name in VERBS),
        ("Parameters of families", _of_families(), ""),
    ]
    return INTRODUCTION + "".join(f"\n## {title}\n\n{text}{more}" for title, text, more in sections)


def _tensors(tensors: Iterable[Tensor]) -> str:
    return "".join(f"- `{each.name}` ({each.dtype}): {each.doc}\n" for each in tensors)


def _parameters(parameters: Iterable[Parameter]) -> str:
    return "".join(f"- {_title(each)}: {each.doc}\n" for each in parameters)


def _title(parameter: Parameter) -> str:
    return f"`{parameter.name}` ({OF_MODEL.get(parameter.name) or _allowed(parameter)})"


def _allowed(parameter: Parameter) -> str:
    """
    >>> _allowed(Parameter("dimensions", int, minimum=1, maximum=384)), _allowed(Parameter("b", bool))
    ('integer from 1 to 384', 'boolean')
    """
    for article in ("one of ", "a string of ", "an ", "a "):
        if parameter.allowed().startswith(article):
            return parameter.allowed().removeprefix(article)
    return parameter.allowed()


def _common_parameters() -> list[Parameter]:
    """Parameters of every verb; LORA and PAGES if the model takes adapters, and if it reads images."""
    first, *others = (VERBS[name].parameters(MODEL) for name in VERBS)
    return [each for each in (*first, PAGES) if each in (LORA, PAGES) or all(each in other for other in others)]


def _verb_parameters(name: str) -> list[Parameter]:
    return [each for each in VERBS[name].parameters(MODEL) if each not in _common_parameters()]


def _of_families() -> str:
    """Return a line for each parameter of families, with each effect and the families that it has it in."""
    effects: dict[str, dict[str, list[str]]] = {}
    for name in FAMILIES:
        for parameter in family(name).parameters:
            effects.setdefault(_title(parameter), {}).setdefault(parameter.doc, []).append(name)
    lines = []
    for title, found in effects.items():
        lines.append(f"- {title}: " + "; ".join(f"{doc} ({', '.join(names)})" for doc, names in found.items()) + "\n")
    return "".join(sorted(lines))
