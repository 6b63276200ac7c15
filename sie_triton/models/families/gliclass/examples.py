"""Examples of a request: texts with their labels, which the model reads after the text, as gliclass writes them."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from sie_triton.contract import Parameter, ParameterValue
from sie_triton.contract.limits import LIMITS
from sie_triton.contract.parameters import encodable, parsed_json
from sie_triton.errors import InputError
from sie_triton.models.families.gliner2.checked import name_of, only

MARKER, END = "<<EXAMPLE>>", "<<SEP>>"

EXAMPLES = Parameter(
    "examples",
    str,
    max_characters=LIMITS.max_json_characters,
    for_prompt=True,
    doc='JSON list of {"text": …, "labels": […]}',
)
WHERE = f"parameter {EXAMPLES.name}"


def examples_of(options: Mapping[str, ParameterValue]) -> str:
    """Return the examples as the model reads them, empty without any; InputError says which one is wrong, and why."""
    return _written(str(options.get(EXAMPLES.name, "")))


@lru_cache(maxsize=64)
def _written(text: str) -> str:
    given = parsed_json(text, WHERE) if text.strip() else []
    if not isinstance(given, list):
        raise InputError.at(WHERE, 'must be a JSON list of {"text": …, "labels": […]}')
    parts = [_example(each, f"{WHERE}: example {i}") for i, each in enumerate(given)]
    return "".join([*parts, END]) if parts else ""


def _example(given: Any, where: str) -> str:
    found = only(given, ("text", "labels"), where)
    text, labels = found.get("text"), found.get("labels")
    if not isinstance(text, str) or not isinstance(labels, list):
        raise InputError.at(where, "needs text, a string, and labels, a list of strings")
    names = ", ".join(name_of(label, f"{where}: labels") for label in labels)
    return f"{MARKER}{encodable(text, where)} \nLabels:\n {names}"
