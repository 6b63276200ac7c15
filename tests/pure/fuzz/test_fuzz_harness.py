"""The fuzzer itself: each kind of fault is found and reported with its input, and a good reader passes."""

import pickle
from pathlib import Path

import pytest

from tests.fuzz import runner
from tests.fuzz.runner import Outcome, fuzzed
from tests.pure.fuzz.faulty import MARK

FAULTY = "tests.pure.fuzz.faulty"


def fuzzed_by_name(name: str, directory: Path) -> Outcome:
    return fuzzed(name, f"{FAULTY}:{name}", directory / name, num_cases=100, start=1, hang_s=2.0)


@pytest.mark.parametrize(
    ("name", "place"),
    [("raises", "KeyError in faulty.py:"), ("crashes", "SIGSEGV"), ("hangs", "no progress for 2 s in")],
)
def test_a_fault_is_found_with_its_input(name, place, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "MAX_CHILDREN", 1)
    (finding,) = fuzzed_by_name(name, tmp_path).findings
    assert place in finding.place
    assert "faulty.py" in finding.place
    assert MARK in pickle.loads(finding.case)


def test_a_good_reader_passes(tmp_path):
    outcome = fuzzed_by_name("good", tmp_path)
    assert outcome.findings == []
    assert outcome.num_cases >= 100
