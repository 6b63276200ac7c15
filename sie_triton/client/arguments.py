"""Check the arguments of a call and convert them for a request, before anything is sent."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.utils import TRITON_RESERVED_REQUEST_PARAMS, TRITON_RESERVED_REQUEST_PARAMS_PREFIX

from sie_triton.client.items import objects, utf_8
from sie_triton.errors import InputError

# Request parameters that are sent as JSON; callers may pass mappings, and lists for JSON_LISTS.
JSON_LISTS = {"relation_labels", "examples"}
JSON_PARAMETERS = JSON_LISTS | {"label_thresholds", "label_descriptions", "label_groups", "output_schema", "classes"}

ENTITY = 'give {"start": …, "end": …}; "label" is optional'


def encoded_labels(labels: Any) -> npt.NDArray[np.object_]:
    """Return the labels as an object array [k] of bytes; empty for None."""
    given = [] if labels is None else _several(labels, "labels", "texts")
    for i, label in enumerate(given):
        if not isinstance(label, str):
            raise InputError.at(f"labels[{i}]", f"must be a string, not {type(label).__name__}")
    return objects([utf_8(label, f"labels[{i}]") for i, label in enumerate(given)])


def encoded_entities(entities: Any, num_items: int) -> npt.NDArray[np.object_] | None:
    """Return the known entities of each item: an object array [n] of bytes, each a JSON list; None if not given."""
    if entities is None:
        return None
    lists = _several(entities, "entities", "lists")
    if len(lists) != num_items:
        raise InputError.at("entities", f"has {len(lists)} lists for {num_items} items; send one list for each item")
    return objects([_encoded_list(each, f"entities[{i}]") for i, each in enumerate(lists)])


def _encoded_list(entities: Any, name: str) -> bytes:
    found = _several(entities, name, "entities")
    for i, each in enumerate(found):
        if not isinstance(each, Mapping):
            raise InputError.at(f"{name}[{i}]", f"must be a mapping, not {type(each).__name__}; {ENTITY}")
    return utf_8(as_json([dict(each) for each in found], name), name)


def _several(values: Any, name: str, what: str) -> list[Any]:
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise InputError.at(name, f"must be a list of {what}, not {type(values).__name__}")
    return list(values)


def as_json(value: Any, name: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as exc:
        raise InputError.at(name, f"cannot be converted to JSON ({exc})") from exc


def checked_model(model: str) -> str:
    if not isinstance(model, str) or not model:
        raise InputError.at("model", f"must be a name such as org/name, not {model!r}")
    utf_8(model, "model")
    return model


def checked_concurrency(number: int) -> int:
    if not isinstance(number, int) or number < 1:
        raise InputError.at("max_concurrency", f"must be 1 or more; got {number!r}")
    return number


def request_parameters(task: str, given: Mapping[str, Any], known: type) -> dict[str, Any]:
    """Return the request parameters of a call: its `options`, overridden by its named arguments."""
    unknown = given.keys() - known.__annotations__.keys()
    if unknown:
        raise TypeError(f"{task}() takes no {', '.join(sorted(unknown))}; pass model parameters in options={{…}}")
    options = given.get("options")
    if options is not None and not isinstance(options, Mapping):
        raise InputError.at("options", f"must be a mapping, not {type(options).__name__}")
    named = {name: value for name, value in given.items() if name != "options" and value is not None}
    parameters = {**_as_sent(options or {}), **_as_sent(named)}
    for name, value in parameters.items():
        _check_parameter(name, value)
    return parameters


def _as_sent(given: Mapping[str, Any]) -> dict[str, Any]:
    """Replace lists and mappings by the strings that represent them in a request."""
    sent = dict(given)
    output_types, schema = given.get("output_types"), given.get("output_schema")
    if isinstance(output_types, Iterable) and not isinstance(output_types, str):
        sent["output_types"] = ",".join(map(str, output_types))
    if isinstance(given.get("threshold"), Mapping):
        sent["label_thresholds"] = sent.pop("threshold")
    if schema is not None and hasattr(schema, "model_json_schema"):
        sent["output_schema"] = schema.model_json_schema()
    for name in JSON_PARAMETERS & sent.keys():
        value = dict(sent[name]) if isinstance(sent[name], Mapping) else sent[name]
        if isinstance(value, dict) or (name in JSON_LISTS and isinstance(value, list)):
            sent[name] = as_json(value, name)
    return sent


def _check_parameter(name: str, value: Any) -> None:
    if not isinstance(name, str):
        raise InputError.at("options", f"names must be strings, {name!r} is {type(name).__name__}")
    if name in TRITON_RESERVED_REQUEST_PARAMS or name.startswith(TRITON_RESERVED_REQUEST_PARAMS_PREFIX):
        remedy = "; the timeout of a call, or the header X-Request-Timeout, takes seconds" if name == "timeout" else ""
        raise InputError.at(name, f"is reserved by Triton{remedy}")
    if isinstance(value, str):
        utf_8(value, name)
    elif not isinstance(value, (bool, int, float)):
        raise InputError.at(name, f"must be a string, a number, true or false; got {type(value).__name__}")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise InputError.at(name, f"must fit into 64 bits; got {value}")
