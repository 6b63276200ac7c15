"""Hooks of schemathesis: msgpack, and relations between fields that JSON schema cannot express."""

from typing import Any

import msgpack
import msgpack_numpy
import schemathesis

OTHER_PAIRS = ("queries", "documents", "items", "data_1", "data_2")
TYPES = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")


@schemathesis.serializer(*TYPES)
def write_msgpack(ctx: Any, value: Any) -> bytes:
    return msgpack.packb(plain(value))


@schemathesis.deserializer(*TYPES)
def read_msgpack(ctx: Any, response: Any) -> Any:
    return plain(msgpack.unpackb(response.content, object_hook=msgpack_numpy.decode))


def plain(value: Any) -> Any:
    """Convert for msgpack: arrays become lists; integers beyond 64 bits become floats, as in the door's JSON."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return float(value)
    return value.tolist() if hasattr(value, "tolist") else value


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Any) -> None:
    """Make fields consistent in bodies that are meant to be valid."""
    if case.meta is None or not case.meta.generation.mode.is_positive or not isinstance(case.body, dict):
        return
    for name in ("lora", "prompt_name", "instruction"):
        unset(case.body, name)
    for name in ("chunk_tokens", "chunk_overlap", "late_chunking", "num_protected_tokens"):
        unset(case.body, name, None)
    if case.body.keys() & {"truncation_direction", "truncate", "parameters"}:
        case.body |= {"truncation_side": None}
    if case.path.startswith("/v1/extract"):
        fit_labels(case.body.get("params") or {})
    if case.path in ("/v1/embed", "/v2/embed"):
        case.body |= {"texts": ["a"], "images": None, "inputs": None, "dimensions": None, "is_query": None}
    if case.path.endswith("/embeddings"):
        case.body |= {"task": None, "input": case.body.get("input") or "a", "messages": None}
    if case.path.endswith("/rerank"):
        fit_documents(case.body)
    if case.path in ("/score", "/v1/score"):
        case.body |= {**dict.fromkeys(OTHER_PAIRS), "text_1": ["a"], "text_2": ["b"]}
    if case.body.get("overflow_policy") == "error":
        case.body |= {"truncate_prompt_tokens": None}


def unset(body: dict[str, Any], name: str, nothing: str | None = "") -> None:
    """Remove what a model may not have: an adapter, a prompt by name, a place for an instruction, room for a text."""
    params = body.get("params") or {}
    for each in (body, body.get("options") or {}, params, params.get("options") or {}, body.get("parameters") or {}):
        if each.get(name) is not None:
            each[name] = nothing


def fit_labels(params: dict[str, Any]) -> None:
    """Keep thresholds and descriptions only for labels of the request."""
    options, labels = params.get("options") or {}, params.get("labels") or []
    for name, value in (("label_thresholds", 0.5), ("label_descriptions", "what it is")):
        if options.get(name) is not None:
            options[name] = dict.fromkeys(labels, value)


def fit_documents(body: dict[str, Any]) -> None:
    """Give documents that are objects the fields in rank_fields."""
    names = body.get("rank_fields") or ["text"]
    for document in body.get("documents") or ():
        if isinstance(document, dict):
            document |= dict.fromkeys(names, "a text")
