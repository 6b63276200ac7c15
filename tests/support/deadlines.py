"""Generating families, and requests whose deadline passes before they are answered."""

import time
from typing import Any

import pytest

from sie_triton.contract import Rows
from sie_triton.contract.tensors import lengths_of
from sie_triton.engines.torch import generate
from sie_triton.models.families.shared.readers.processor import GENERATED
from sie_triton.pipeline.scheduling.job import rows_of
from tests.support.readers import Reader


def given_up(reader: Reader, requests: Any, monkeypatch: pytest.MonkeyPatch) -> list[Rows]:
    """The row of an item whose deadline passed before the pass: nothing may be generated for it."""
    whole = reader.adapter.forward(reader.batch(requests, deadline_ns=time.monotonic_ns() + 10**12))
    monkeypatch.setattr(reader.adapter, "answers", None)
    ended = reader.adapter.forward(reader.batch(requests, deadline_ns=time.monotonic_ns()))
    assert (ended[GENERATED.lengths] < whole[GENERATED.lengths]).all()
    return rows_of(ended, len(ended[GENERATED.lengths]), lengths_of([GENERATED]))


def tokens_in(asks: int, reader: Reader, request: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of tokens of each item if the clock passes the deadline at its read number `asks` + 1."""
    calls, written = iter(range(1000)), []
    monkeypatch.setattr(generate, "monotonic_ns", lambda: next(calls))
    monkeypatch.setattr(reader.adapter, "text", lambda tokens, *_: written.append(len(tokens)) or "")
    reader.adapter.forward(reader.batch([request], deadline_ns=asks))
    assert next(calls) == asks + 1, "asked before the pass, and after each token"
    return written
