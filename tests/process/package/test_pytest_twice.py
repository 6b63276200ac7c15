"""A failed test is rerun by itself; nothing else is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "pytest-twice"
# Other plugins take a second a session to import.
PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": "-p xdist.plugin -p pytest_timeout"}

# Start of a module of a throwaway project. `is_first()` is True in the first session only.
HEAD = """
import os
from pathlib import Path

import pytest

def is_first():
    path = Path(os.environ["MARKS"], os.environ["PYTEST_CURRENT_TEST"].split("::")[1].split()[0])
    was_there = path.exists()
    path.touch()
    return not was_there

"""
PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"
FAILS_ONCE = "def test_fails_once(): assert not is_first()\n"
FAILS_THEN_SKIPS = "def test_fails_then_skips():\n    assert not is_first()\n    pytest.skip()\n"
FAILS_IN_TEARDOWN_ONCE = """
@pytest.fixture
def torn():
    yield
    assert not is_first()

def test_is_torn_down(torn): pass
"""
CRASHES_ONCE = "def test_crashes_once():\n    if is_first(): os._exit(0)\n"
CANNOT_BE_COLLECTED = "import not_there\n"
FLAKY = "flaky: test_{}.py::test_{} failed once and passed alone; fix it"


def run(directory: Path, sessions: list[str], *modules: str) -> tuple[int, list[str], int]:
    """Return the exit status, the lines that name flaky tests and the number of sessions."""
    marks = directory / "marks"
    marks.mkdir()
    (directory / "pytest.ini").write_text("[pytest]\n")
    for number, text in enumerate(modules):
        (directory / f"test_{number}.py").write_text(HEAD + text)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = {**outside, **PLUGINS, "MARKS": str(marks)}
    command = [sys.executable, SCRIPT, *sessions]
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    flaky = [line for line in lines if line.startswith("flaky: ")]
    assert lines[len(lines) - len(flaky) :] == flaky
    return done.returncode, flaky, done.stdout.count("test session starts")


def test_a_run_in_which_all_pass_has_no_second_session(tmp_path):
    assert run(tmp_path, ["."], PASSES) == (0, [], 1)


@pytest.mark.parametrize("options", [".", "-n 2 --dist loadfile ."], ids=["one process", "xdist"])
def test_a_test_that_fails_once_is_named_and_fails_no_run(tmp_path, options):
    assert run(tmp_path, [options], PASSES + FAILS_ONCE, PASSES) == (0, [FLAKY.format(0, "fails_once")], 2)


def test_a_teardown_that_fails_once_is_flaky_too(tmp_path):
    assert run(tmp_path, ["."], FAILS_IN_TEARDOWN_ONCE) == (0, [FLAKY.format(0, "is_torn_down")], 2)


def test_a_test_that_fails_twice_fails_the_run(tmp_path):
    assert run(tmp_path, ["."], PASSES + FAILS) == (1, [], 2)


def test_a_flaky_test_is_named_beside_one_that_fails_twice(tmp_path):
    assert run(tmp_path, ["."], FAILS, FAILS_ONCE) == (1, [FLAKY.format(1, "fails_once")], 2)


def test_each_session_reruns_its_own_failures(tmp_path):
    flaky = [FLAKY.format(number, "fails_once") for number in (0, 1)]
    once_more = FAILS_ONCE.replace("not is_first()", "Path('again').exists() or Path('again').touch()")
    assert run(tmp_path, ["test_0.py", "test_1.py test_2.py"], FAILS_ONCE, once_more, PASSES) == (0, flaky, 4)


def test_a_failed_session_is_not_forgotten_for_one_that_passes(tmp_path):
    assert run(tmp_path, ["test_0.py", "test_1.py"], FAILS, PASSES) == (1, [], 3)


@pytest.mark.parametrize(
    ("options", "modules", "num_sessions"),
    [
        (".", [FAILS_THEN_SKIPS], 2),
        (".", [FAILS_ONCE, CANNOT_BE_COLLECTED], 1),
        ("-n 2 .", [FAILS_ONCE, CANNOT_BE_COLLECTED], 1),
        (".", [CRASHES_ONCE], 1),
        ("-n 2 .", [CRASHES_ONCE, FAILS_ONCE, PASSES], 1),
        ("--exitfirst .", [FAILS_ONCE, PASSES], 1),
        ("--session-timeout 0.001 .", [FAILS_ONCE, PASSES], 1),
        (".", [""], 1),
        ("nowhere", [PASSES], 1),
    ],
    ids=[
        "a test that then skips",
        "a collection error",
        "a collection error of a worker",
        "a crash",
        "a worker that crashes",
        "a session that ends early",
        "a session that takes too long",
        "no test",
        "a wrong option",
    ],
)
def test_whatever_does_not_pass_the_second_time_fails_the_run(tmp_path, options, modules, num_sessions):
    status, flaky, ran = run(tmp_path, [options], *modules)
    assert (status, flaky, ran) == (1, [], num_sessions)
