"""The fuzzer itself: each kind of fault is found and reported with its input."""

import pickle

import pytest

from tests.fuzz import runner
from tests.fuzz.runner import fuzzed
from tests.pure.fuzz.faulty import MARK

FAULTY = "tests.pure.fuzz.faulty"


@pytest.mark.parametrize(
    ("name", "place"),
    [("raises", "KeyError in faulty.py:"), ("crashes", "SIGSEGV"), ("hangs", "no progress for 2 s in")],
)
def test_a_fault_is_found_with_its_input(name, place, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "MAX_CHILDREN", 1)
    outcome = fuzzed(name, f"{FAULTY}:{name}", tmp_path / name, num_cases=100, start=1, hang_s=2.0)
    (finding,) = outcome.findings
    assert place in finding.place
    assert "faulty.py" in finding.place
    assert MARK in pickle.loads(finding.case)
