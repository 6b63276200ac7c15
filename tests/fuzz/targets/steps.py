"""Forged requests to the later steps, which clients can reach directly where the steps are open."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from sie_triton.contract import VERBS
from sie_triton.contract.tensors import CONTEXT, COST, LENGTHS
from sie_triton.errors import InputError, ModelError
from sie_triton.stages.seal import SEAL_BYTES
from tests.fuzz.damage import HOSTILE, edited
from tests.fuzz.models import saved_models
from tests.fuzz.pipeline import Outputs, Pipeline, answer_of, pipelines
from tests.fuzz.target import Target
from tests.fuzz.targets.stages import check_error
from tests.fuzz.trees import PLAIN, changed, to_json
from tests.support.pictures import pictures
from tests.support.stages import FakeRequest

# Requests of which the forged ones are made: model, verb, inputs.
REQUESTS = (
    ("bge-m3", "encode", {"text": [b"hello world", b"you"]}),
    ("bge-m3", "score", {"text": [b"hello world", b"you"], "query": [b"who?"]}),
    ("colbert", "encode", {"text": [b"hello"]}),
    ("cross-encoder", "score", {"text": [b"hello world", b"you"], "query": [b"who?"]}),
    ("gliner", "extract", {"text": [b"Ada was born in London.", b"x"], "labels": [b"person", b"city"]}),
    ("classifier", "extract", {"text": [b"It is good.", b""]}),
    ("clip", "encode", {"text": [b"", b"a cat"], "image": [pictures(((40, 30),))[0], b""]}),
)

# An edit of an array: which array, what, where, how much.
EDITS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9), st.integers(0, 255), st.integers(0, 255)), max_size=4)

Arrays = dict[str, Any]


@contextmanager
def features(directory: Path) -> Iterator[Target]:
    """Yield the target of forged requests to inference."""
    with pipelines(saved_models(directory), directory, is_open=True) as models:
        valid = [(name, request_to_inference(models[name], verb, inputs)) for name, verb, inputs in REQUESTS]
        yield Target(forged(valid), lambda case: read_by_inference(models[case[0]], case[1]), (InputError,))


@contextmanager
def computed(directory: Path) -> Iterator[Target]:
    """Yield the target of forged requests to postprocess."""
    with pipelines(saved_models(directory), directory, is_open=True) as models:
        valid = [(name, request_to_postprocess(models[name], verb, inputs)) for name, verb, inputs in REQUESTS]
        yield Target(forged(valid), lambda case: answered_by_postprocess(models[case[0]], case[1]), (InputError,))


def request_to_inference(model: Pipeline, verb: str, inputs: dict[str, list[bytes]]) -> Arrays:
    arrays = {name: np.array([elements], np.object_) for name, elements in inputs.items()}
    found = model.features(VERBS[verb], {}, arrays)
    return {name: array[None] for name, array in found.items() if name != COST.name}


def request_to_postprocess(model: Pipeline, verb: str, inputs: dict[str, list[bytes]]) -> Arrays:
    sent = request_to_inference(model, verb, inputs)
    passed_on = {VERBS[verb].input_name(each): each.name for each in VERBS[verb].passed_on(model.model)}
    rows = model.rows({name: array[0] for name, array in sent.items()})
    return {
        **{name: array[None] for name, array in rows.items()},
        LENGTHS.name: sent[model.model.lengths],
        **{name: np.array([inputs[own]], np.object_) for name, own in passed_on.items() if own in inputs},
    }


def forged(valid: Sequence[tuple[str, Arrays]]) -> SearchStrategy[tuple[str, Arrays]]:
    """Return a strategy of these requests with some numbers, shapes and fields of their contexts changed."""
    contexts = [to_fields(arrays[CONTEXT.name]) for _, arrays in valid]

    def made(which: int, edits: list[Any], fields: Any) -> tuple[str, Arrays]:
        name, arrays = valid[which]
        forged = dict(arrays)
        if fields is not None:
            forged[CONTEXT.name] = to_tensor(fields)
        for number, kind, place, amount in edits[: len(forged) - 1]:
            of = sorted(forged)[number % len(forged)]
            if (array := changed_array(forged[of], kind, place, amount)) is None:
                del forged[of]
            else:
                forged[of] = array
        return name, forged

    alone = st.builds(made, st.integers(0, len(valid) - 1), EDITS, st.none())
    several = [
        st.builds(made, st.just(which), EDITS, changed([context], PLAIN, is_plain=True))
        for which, context in enumerate(contexts)
    ]
    return st.one_of(alone, alone, st.one_of(several))


def changed_array(array: Any, kind: int, place: int, amount: int) -> Any:
    """Return an array of the same type: other numbers, other shapes; None: it is missing."""
    if kind == 0:
        return None if amount % 4 == 0 else array[:, : amount % (array.shape[1] + 1)]
    if kind == 1:
        return np.concatenate([array] * (1 + amount % 3), axis=amount % 2)
    if array.dtype == np.object_:  # Triton itself checks the dimensions of a client's own input
        return np.array([[each[: amount % 9] + b"\xff" for each in array.ravel()]], np.object_)
    if kind == 2:
        return array[:, :, None] if amount % 2 else array.reshape(1, -1)
    flat = array.copy().ravel()
    if array.dtype == np.uint8:
        return np.frombuffer(edited(flat.tobytes(), [(kind, place, amount)]), np.uint8)[None]
    if len(flat):
        values = (*HOSTILE, float("nan"), float("inf"), -1e30) if array.dtype.kind == "f" else HOSTILE
        with np.errstate(all="ignore"):
            flat[place % len(flat)] = np.array(values[amount % len(values)] % (1 << 64)).astype(array.dtype)
    return flat.reshape(array.shape)


def to_fields(context: Any) -> Any:
    return json.loads(context[0][SEAL_BYTES:].tobytes())


def to_tensor(fields: Any) -> Any:
    return np.frombuffer(bytes(SEAL_BYTES) + to_json(fields), np.uint8)[None]


def read_by_inference(model: Pipeline, arrays: Arrays) -> None:
    request = FakeRequest(**arrays)
    model.desk.origin(request)
    model.desk.deadline_ns(request)
    try:
        model.rows_of(request)
    except InputError as exc:
        check_error(exc)
        raise


def answered_by_postprocess(model: Pipeline, arrays: Arrays) -> Outputs:
    try:
        return answer_of(model.postprocess, FakeRequest(**arrays))
    except InputError as exc:
        check_error(exc)
        raise
    except ModelError:
        return {}  # its cause has been logged
