"""Requests as the stages get them: of clients to preprocess, and forged ones to the later steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from sie_triton.contract import VERBS
from sie_triton.contract.error_prefix import with_prefix, without_prefix
from sie_triton.errors import BusyError, Cancelled, InputError, SIEError
from tests.fuzz.damage import one
from tests.fuzz.models import saved_models
from tests.fuzz.parameters import parameters_of
from tests.fuzz.pipeline import Outputs, Pipeline, pipelines
from tests.fuzz.requests import inputs_of
from tests.fuzz.target import Target

# Errors that blame the request, or the moment.
REFUSALS = (InputError, BusyError, Cancelled)

# What steps send each other: no client is to blame for it.
BETWEEN = ("found", "found_lengths", "num_pieces", "lengths", "context")

# Microseconds until a client no longer waits.
TIMEOUTS = (0, 0, 0, 1, 60_000_000, 2**31)


@contextmanager
def of_verb(directory: Path, verb: str, *names: str) -> Iterator[Target]:
    """Yield the target of one verb's requests to these models."""
    with pipelines(saved_models(directory), directory, *names) as models:
        requests = [
            st.tuples(
                st.just(name),
                parameters_of(each.model, verb),
                inputs_of(each.model, verb),
                one(TIMEOUTS),
                one((*[1] * 15, 2)),
            )
            for name, each in models.items()
        ]
        yield Target(st.one_of(requests), lambda case: answered(models[case[0]], verb, *case[1:]), REFUSALS)


def encode(directory: Path) -> Any:
    return of_verb(directory, "encode", "bge-m3", "clip", "clap")


def score(directory: Path) -> Any:
    return of_verb(directory, "score", "bge-m3", "cross-encoder", "colbert")


def extract(directory: Path) -> Any:
    return of_verb(directory, "extract", "gliner", "classifier", "gliner2", "gliclass", "glirel")


def answered(
    model: Pipeline, verb: str, parameters: dict[str, Any], inputs: dict[str, list[bytes]], timeout_us: int, rows: int
) -> None:
    """Send a request through the steps, and check what comes out."""
    arrays = {name: np.array([elements] * rows, np.object_).reshape(rows, -1) for name, elements in inputs.items()}
    try:
        outputs = model.answer(VERBS[verb], parameters, arrays, timeout_us)
    except SIEError as exc:
        check_error(exc)
        check_field(exc.field)
        raise
    check_outputs(model, verb, outputs)


def check_field(name: str) -> None:
    assert name not in BETWEEN


def check_error(error: SIEError, start: str = "") -> None:
    """Assert that an error is of readable length, crosses Triton, and tells nothing of this machine."""
    text = str(error).encode(errors="backslashreplace").decode()
    assert 0 < len(text) < 6000
    assert text.startswith(start), text
    assert "Traceback" not in text
    assert str(Path(__file__).parents[3]) not in text
    crossed = without_prefix(with_prefix(error))
    assert crossed is not None
    assert (crossed.kind, str(crossed)) == (error.kind, text)


def check_outputs(model: Pipeline, verb: str, outputs: Outputs) -> None:
    """Assert that the outputs have the declared number of dimensions."""
    for tensor in VERBS[verb].outputs(model.model):
        assert outputs[tensor.name].ndim == len(tensor.dims), tensor.name
