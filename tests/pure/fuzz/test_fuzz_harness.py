"""The fuzzer itself: each kind of fault is found and reported with its input, and a good reader passes."""

import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_triton.system.processes.pids import is_alive
from tests.fuzz import runner
from tests.fuzz.checksums import repaired_ogg, repaired_png
from tests.fuzz.damage import EDITS, edited
from tests.fuzz.runner import HarnessError, Outcome, fuzzed
from tests.fuzz.targets import TARGETS
from tests.fuzz.trees import changed, to_json, to_msgpack
from tests.pure.fuzz.faulty import MARK
from tests.support.pictures import picture, saved
from tests.support.sounds import saved as saved_sound
from tests.support.sounds import sound

ROOT = Path(__file__).parents[3]
FAULTY = "tests.pure.fuzz.faulty"


def fuzzed_by_name(name: str, directory: Path, hang_s: float = 20.0, cases: int = 300) -> Outcome:
    return fuzzed(name, f"{FAULTY}:{name}", directory / name, cases, 1, hang_s)


@pytest.fixture
def two_children(monkeypatch):
    monkeypatch.setattr(runner, "MAX_CHILDREN", 2)


@pytest.mark.parametrize("name", ["good", "refuses"])
def test_a_good_reader_passes(name, tmp_path):
    outcome = fuzzed_by_name(name, tmp_path)
    assert outcome.findings == []
    assert outcome.num_cases >= 300


@pytest.mark.parametrize(
    ("name", "place", "text"),
    [
        ("raises", "KeyError in faulty.py:", "in fail"),
        ("panics", "Panic in faulty.py:", "at the disco"),
        ("logs", "KeyError in faulty.py:", "in log_it"),
        ("takes_memory", "MemoryError in faulty.py:", "bytearray"),
    ],
)
def test_a_wrong_exception_is_found_and_its_input_made_small(name, place, text, tmp_path):
    outcome = fuzzed_by_name(name, tmp_path)
    (finding,) = outcome.findings
    assert finding.place.startswith(place)
    assert text in finding.text
    assert pickle.loads(finding.case) == MARK
    assert finding.shown == repr(MARK)
    assert outcome.num_cases >= 300


@pytest.mark.parametrize(
    ("name", "said"),
    [("crashes", "SIGSEGV"), ("is_killed", "SIGKILL"), ("exits", "with status 3")],
)
def test_the_end_of_the_process_is_found_with_its_input(name, said, tmp_path, two_children):
    (finding,) = fuzzed_by_name(name, tmp_path, cases=100).findings
    assert said in finding.place
    assert ("faulty.py" in finding.place) == (name == "crashes")
    assert MARK in pickle.loads(finding.case)


def test_a_hang_is_found_with_its_place(tmp_path, two_children):
    outcome = fuzzed_by_name("hangs", tmp_path, hang_s=1.0)
    assert outcome.findings[0].place.startswith("no progress for 1 s in")
    assert "faulty.py" in outcome.findings[0].place
    assert MARK in pickle.loads(outcome.findings[0].case)


def test_processes_of_a_hanging_reader_end_with_it(tmp_path, two_children):
    fuzzed_by_name("hangs_with_another", tmp_path, hang_s=1.0)
    others = [int(path.read_text()) for path in (tmp_path / "hangs_with_another").glob("child-*/other")]
    assert len(others) == 2
    ends_at = time.monotonic() + 10
    while any(map(is_alive, others)) and time.monotonic() < ends_at:
        time.sleep(0.05)
    assert not any(map(is_alive, others))


def test_files_that_stay_open_are_found(tmp_path):
    outcome = fuzzed_by_name("opens_files", tmp_path, cases=2000)
    assert [each.place for each in outcome.findings] == ["open files"]


def test_a_fault_of_the_harness_is_no_finding(tmp_path):
    with pytest.raises(HarnessError, match="no_such_target"):
        fuzzed_by_name("no_such_target", tmp_path)


def test_the_command_reports_and_repeats_a_finding(tmp_path):
    done = run_command("--cases", "5", "--target", "json", "--output", str(tmp_path / "report.md"))
    assert done.returncode == 0, done.stderr
    assert '"found": 0' in done.stdout.splitlines()[-1]
    assert "| json | " in (tmp_path / "report.md").read_text()
    (tmp_path / "case").write_bytes(pickle.dumps(b"{}"))
    assert "nothing" in run_command("--target", "json", "--repeat", str(tmp_path / "case")).stdout
    (tmp_path / "case").write_bytes(pickle.dumps(5))
    assert run_command("--target", "json", "--repeat", str(tmp_path / "case")).returncode == 1


def run_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_every_target_can_be_found():
    assert len(TARGETS) >= 12
    for reference in TARGETS.values():
        module, _, name = reference.partition(":")
        assert f"def {name}(" in (ROOT / f"{module.replace('.', '/')}.py").read_text()


@given(st.binary(max_size=200), EDITS)
def test_edits_never_fail_and_none_changes_nothing(data, edits):
    assert isinstance(edited(data, edits, [data, b"", b"other"]), bytes)
    assert edited(data, []) == data


DOCUMENT = {"a": [1, {"b": "c"}], "d": {"e": None, "f": [True, "x"]}}


@given(changed([DOCUMENT]))
def test_changed_documents_can_be_written(document):
    assert isinstance(to_json(document), bytes)
    assert isinstance(to_msgpack(document), bytes)


def test_checksums_of_undamaged_files_are_right():
    image = saved(picture(20, 10))
    assert repaired_png(image) == image
    assert repaired_png(image[:-2] + b"xx") == image
    audio = saved_sound(sound(0.1), kind="OGG")
    assert repaired_ogg(audio) == audio
    assert repaired_ogg(audio[:22] + bytes(4) + audio[26:]) == audio
