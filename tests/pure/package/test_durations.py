"""How processes share the files of tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TESTS = """
import os, time, pytest
@pytest.mark.parametrize("number", range(4))
def test_some(number):
    if number == 1 and "last" in __name__:
        time.sleep(1)
        os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
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
