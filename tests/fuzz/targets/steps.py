"""Damaged messages to the later steps, which clients can reach directly."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from sie_triton.contract import VERBS
from sie_triton.contract.tensors import MESSAGE, PIXELS
from sie_triton.errors import InputError
from sie_triton.pipeline.stages.message import FRONT, SEAL_BYTES
from tests.fuzz.damage import edited
from tests.fuzz.models import saved_models
from tests.fuzz.pipeline import Outputs, Pipeline, answer_of, pipelines
from tests.fuzz.target import Target
from tests.fuzz.targets.stages import check_error
from tests.support.pictures import pictures
from tests.support.stages import FakeRequest

# Requests of which the damaged ones are made: model, verb, inputs.
REQUESTS = (
    ("bge-m3", "encode", {"text": [b"hello world", b"you"]}),
    ("bge-m3", "score", {"text": [b"hello world", b"you"], "query": [b"who?"]}),
    ("colbert", "encode", {"text": [b"hello"]}),
    ("cross-encoder", "score", {"text": [b"hello world", b"you"], "query": [b"who?"]}),
    ("gliner", "extract", {"text": [b"Ada was born in London.", b"x"], "labels": [b"person", b"city"]}),
    ("classifier", "extract", {"text": [b"It is good.", b""]}),
    ("clip", "encode", {"text": [b"", b"a cat"], "image": [pictures(((40, 30),))[0], b""]}),
)

# An edit of the message: what, where, how much; and the part of the pixels that is left, of 255.
EDITS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2000), st.integers(0, 255)), max_size=3)
LEFT = st.one_of(st.just(255), st.integers(0, 255))

Arrays = dict[str, Any]
Case = tuple[str, Arrays, bool]


@contextmanager
def features(directory: Path) -> Iterator[Target]:
    """Yield the target of damaged requests to inference."""
    with pipelines(saved_models(directory), directory) as models:
        valid = [(name, request_to_inference(models[name], verb, inputs)) for name, verb, inputs in REQUESTS]
        yield Target(damaged(valid), lambda case: answered(models[case[0]].rows_of, case), (InputError,))


@contextmanager
def computed(directory: Path) -> Iterator[Target]:
    """Yield the target of damaged requests to postprocess."""
    with pipelines(saved_models(directory), directory) as models:
        valid = [(name, request_to_postprocess(models[name], verb, inputs)) for name, verb, inputs in REQUESTS]

        def answer(case: Case) -> Outputs:
            return answered(lambda request: answer_of(models[case[0]].postprocess, request), case)

        yield Target(damaged(valid), answer, (InputError,))


def request_to_inference(model: Pipeline, verb: str, inputs: dict[str, list[bytes]]) -> Arrays:
    arrays = {name: np.array([elements], np.object_) for name, elements in inputs.items()}
    return {name: array[None] for name, array in model.features(VERBS[verb], {}, arrays).items()}


def request_to_postprocess(model: Pipeline, verb: str, inputs: dict[str, list[bytes]]) -> Arrays:
    passed_on = {VERBS[verb].input_name(each): each.name for each in VERBS[verb].passed_on(model.model)}
    rows = model.rows_of(FakeRequest(**request_to_inference(model, verb, inputs)))
    return {
        **{name: array[None] for name, array in rows.items()},
        **{name: np.array([inputs[own]], np.object_) for name, own in passed_on.items() if own in inputs},
    }


def damaged(valid: Sequence[tuple[str, Arrays]]) -> SearchStrategy[Case]:
    """Return a strategy of these requests, and whether what is sealed in them was changed."""

    def made(which: int, edits: list[Any], left: int) -> Case:
        name, arrays = valid[which]
        before = arrays[MESSAGE.name].tobytes()
        message = edited(before, edits)
        end = FRONT.unpack_from(before, SEAL_BYTES)[1]
        is_changed = message[:end] != before[:end] or len(message) != len(before)
        sent = {**arrays, MESSAGE.name: np.frombuffer(message, np.uint8)[None]}
        for each in arrays.keys() & {PIXELS.name}:
            sent[each] = arrays[each][:, : len(arrays[each][0]) * left // 255]
            is_changed |= sent[each].shape != arrays[each].shape
        return name, sent, is_changed

    return st.builds(made, st.integers(0, len(valid) - 1), EDITS, LEFT)


def answered(answer: Any, case: Case) -> Outputs:
    """Return the answer to a case; raise its error. Fail if a step takes what the previous one has not sealed."""
    _, arrays, is_changed = case
    try:
        outputs: Outputs = answer(FakeRequest(**arrays))
    except InputError as exc:
        check_error(exc)
        raise
    assert not is_changed, "a step takes a message that was changed"
    return outputs
