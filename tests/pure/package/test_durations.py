"""How processes share the files of tests."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from tests.support import durations

IDS = (
    "tests/a/test_short.py::one",
    "tests/a/test_long.py::one",
    "tests/a/test_long.py::two",
    "tests/b/test_new.py::one",
)
SECONDS = {"tests/a/test_short.py": 1.0, "tests/a/test_long.py": 5.0, "tests/b/test_known.py": 9.0}


ROOT = Path(__file__).parents[3]
TESTS = """
import os, time, pytest
@pytest.mark.parametrize("number", range(4))
def test_some(number):
    if number == 1 and "last" in __name__:
        time.sleep(1)
        os.kill(os.getpid(), 9)
"""


def ordered(monkeypatch, ids, **config):
    monkeypatch.setattr(durations, "stored_seconds", lambda: SECONDS)
    items = [SimpleNamespace(nodeid=each) for each in ids]
    durations.pytest_collection_modifyitems(SimpleNamespace(**config), items)
    return [item.nodeid for item in items]


def test_the_longest_files_come_first_and_a_new_one_counts_as_long(monkeypatch):
    ids = [*IDS[:3], "tests/b/test_known.py::one", IDS[3]]
    assert ordered(monkeypatch, ids, workerinput={}) == [ids[4], ids[3], ids[1], ids[2], ids[0]]


def test_files_of_a_folder_that_share_a_server_stay_together(monkeypatch):
    """The two of 5 and 1 s take as long as one of 6, and longer than one of 5."""
    monkeypatch.setattr(durations, "TOGETHER", (("tests/a/page/",),))
    seconds = {"tests/a/page/test_one.py": 1.0, "tests/a/page/test_two.py": 5.0, "tests/a/test_long.py": 5.5}
    monkeypatch.setitem(globals(), "SECONDS", seconds)
    ids = [f"{file}::one" for file in seconds]
    assert ordered(monkeypatch, ids, workerinput={}) == [ids[1], ids[0], ids[2]]
    assert [durations.scope_of(file) for file in seconds] == ["tests/a/page/", "tests/a/page/", "tests/a/test_long.py"]


def test_a_worker_that_dies_with_the_last_tests_fails_one_of_them(tmp_path):
    """xdist alone waits for ever for the worker that replaces it."""
    for name in ("first", "last"):
        (tmp_path / f"test_{name}.py").write_text(TESTS)
    options = "-q -n 2 --dist loadfile --no-loadscope-reorder -p tests.support.durations"
    command = [sys.executable, "-m", "pytest", *options.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert "1 failed, 7 passed" in done.stdout
