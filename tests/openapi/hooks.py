"""Hooks of schemathesis: msgpack, and what JSON schema cannot say of two fields of one body."""

from typing import Any

import msgpack
import msgpack_numpy
import schemathesis

TYPES = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")


@schemathesis.serializer(*TYPES)
def write_msgpack(ctx: Any, value: Any) -> bytes:
    return msgpack.packb(plain(value))


@schemathesis.deserializer(*TYPES)
def read_msgpack(ctx: Any, response: Any) -> Any:
    return plain(msgpack.unpackb(response.content, object_hook=msgpack_numpy.decode))


def plain(value: Any) -> Any:
    """Arrays are lists to a schema, and integers beyond 64 bits floats to msgpack, as they are to the door's JSON."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value)
    return value.tolist() if hasattr(value, "tolist") else value


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Any) -> None:
    """Make fields fit each other in bodies that are meant to be right."""
    if case.meta is None or not case.meta.generation.mode.is_positive or not isinstance(case.body, dict):
        return
    unset(case.body, "lora")
    if case.path.startswith("/v1/extract"):
        unset(case.body, "instruction")
        fit_labels(case.body.get("params") or {})
    if case.path.endswith("/rerank"):
        fit_documents(case.body)


def unset(body: dict[str, Any], name: str) -> None:
    """No adapter is there, and a model that extracts reads no instruction."""
    params = body.get("params") or {}
    for each in (body, body.get("options") or {}, params, params.get("options") or {}):
        if each.get(name) is not None:
            each[name] = ""


def fit_labels(params: dict[str, Any]) -> None:
    """Thresholds and descriptions are those of labels of the request."""
    options, labels = params.get("options") or {}, params.get("labels") or []
    for name, value in (("label_thresholds", 0.5), ("label_descriptions", "what it is")):
        if options.get(name) is not None:
            options[name] = dict.fromkeys(labels, value)


def fit_documents(body: dict[str, Any]) -> None:
    """Documents that are objects have the fields that are read of them."""
    names = body.get("rank_fields") or ["text"]
    for document in body.get("documents") or ():
        if isinstance(document, dict):
            document |= dict.fromkeys(names, "a text")
