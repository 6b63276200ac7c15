"""Strategy of request parameters: none, those that a model has, and odd ones."""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from sie_triton.contract import LORA, VERBS, Parameter
from sie_triton.contract.model import Model
from sie_triton.records.calls import CALL
from sie_triton.system.telemetry.identity import REQUEST_ID, TRACEPARENT
from tests.fuzz.damage import one
from tests.fuzz.trees import PLAIN, changed

NAMESPACE = os.stat("/proc/self/ns/pid").st_ino
CALLS = (
    f"{NAMESPACE}.1.1.0.1",
    f"{NAMESPACE}.-1.0.4095.1",
    f"{NAMESPACE}.{2**70}.{2**70}.0.{2**70}",
    "1.2.3.4",
    "....",
)
TRACES = ("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "00-" + "0" * 32, "a-b-c-d", "-" * 99)

TEXT = {"type": "string", "description": "who pays"}
SCHEMA = {
    "title": "order",
    "type": "object",
    "properties": {
        "buyer": TEXT,
        "parts": {"type": "array", "items": {"type": "integer"}},
        "state": {"enum": ["open", 3, None, True]},
        "date": {"$ref": "#/$defs/day"},
    },
    "required": ["buyer"],
    "$defs": {"day": {"type": "string", "format": "date"}},
}

# Parameters that are JSON, and documents that fit them.
DOCUMENTS: Mapping[str, Sequence[Any]] = {
    "label_thresholds": [{"person": 0.5}, {"city": 0, "person": 1}],
    "label_descriptions": [{"person": "a human"}, {"city": "", "person": "x"}],
    "relation_labels": [["lives in"], {"lives in": "where", "is": {"description": "what", "threshold": 0.5}}],
    "classes": [{"mood": ["good", "bad"]}, {"mood": {"labels": {"good": "so"}, "multi_label": True, "threshold": 1}}],
    "label_groups": [{"mood": ["good", "bad"]}, {"mood": {"good": "so", "bad": None}, "topic": ["x"]}],
    "examples": [[{"text": "x", "labels": ["good"]}], [{"text": "", "labels": []}]],
    "output_schema": [SCHEMA, {"type": "object", "properties": {"a": {"type": "array", "items": SCHEMA}}}],
}

# Values that one of the parameters takes, and then some.
VALUES = (
    *("dense", "sparse,multivector", "dense,dense", "muvera", "int8", "binary", "float16", "default", "nope", "0.5"),
    *("colbert", "hybrid", "maxsim", "1-3,8", "5-", "0", "9-2", "1-" + "9" * 12, ",", "1,,2", "person", "single-label"),
    *(8, 64, 65, 8.0, 0.3, 1.5, '{"person": "\\ud800"}', '{"person": NaN}', '{"a": ' + "9" * 4000 + "}", "[" * 5000),
    *("org/lora", "This is about {}.", "{", "{0.__class__}", "{}{}"),
    *(json.dumps(document) for documents in DOCUMENTS.values() for document in documents),
)
TEXTS = [value for value in VALUES if isinstance(value, str)]

OTHER_NAMES = ("", "x", "X-Request-Id", "Traceparent", "é", "\0", "n" * 300, "triton_x", "timeout", "priority")


def parameters_of(model: Model, verb: str) -> SearchStrategy[dict[str, Any]]:
    own = VERBS[verb].all_parameters(model)
    fitting = st.fixed_dictionaries({}, optional={name: _fitting(each) for name, each in own.items()})
    names = st.one_of(one(sorted(own)), one(sorted(own)), one(OTHER_NAMES))
    odd = st.dictionaries(names, st.one_of(one(VALUES), one(PLAIN), st.floats()), max_size=3)
    ids = {REQUEST_ID: one(PLAIN), TRACEPARENT: one((*TRACES, *PLAIN))}
    tokens = st.one_of(one(CALLS[:3]), one((*CALLS, *PLAIN)))
    identity = st.fixed_dictionaries({}, optional={CALL: tokens, **ids})
    return st.one_of(
        st.just({}),
        st.just({}),
        fitting,
        fitting,
        st.builds(lambda first, second: first | second, fitting, odd),
        st.builds(lambda first, second: first | second, fitting, identity),
    )


def _fitting(parameter: Parameter) -> SearchStrategy[Any]:
    """Return a strategy of values that a parameter may have."""
    if parameter.choices:
        several = st.lists(one(parameter.choices), min_size=1, max_size=3).map(",".join)
        return several if parameter.is_list else one(parameter.choices)
    if parameter.type is bool:
        return st.booleans()
    if parameter.type is int:
        return st.integers(parameter.minimum, parameter.maximum)
    if parameter.type is float:
        return st.floats(parameter.minimum, parameter.maximum, allow_nan=False)
    if parameter is LORA:
        return st.just("")
    if documents := DOCUMENTS.get(parameter.name):
        texts = changed(documents, PLAIN, is_plain=True).map(json.dumps)
        return st.one_of(one([json.dumps(each) for each in documents]), texts, texts)
    return one(TEXTS)
