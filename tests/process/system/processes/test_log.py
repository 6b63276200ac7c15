"""Log files of child processes are bounded, rotated, and kept across restarts."""

import itertools
import sys

import psutil

from sie_triton.system.processes.child import start
from sie_triton.system.processes.log import (
    MAX_FILE_BYTES,
    MAX_REPEATS,
    MAX_WINDOW_BYTES,
    NUM_OLD_FILES,
    TAIL_BYTES,
    WINDOW_S,
    Log,
    Quota,
)

BOUND_BYTES = (1 + NUM_OLD_FILES) * MAX_FILE_BYTES


def write(log: Log, program: str) -> str:
    """Return the log of a child that runs `program`, as its parent reads it."""
    child = start([sys.executable, "-c", program], log=log)
    child.end(60)
    return child.log()


def size_of(log: Log) -> int:
    return sum(path.stat().st_size for path in log.path.parent.iterdir())


def test_repeated_lines_are_limited_and_the_rest_counted(tmp_path):
    line = "ERROR 12:00:{:02d} accept failed: Too many open files"
    program = f"for i in range(100_000): print({line!r}.format(i % 60))\nprint('the last word')"
    with Log(tmp_path / "logs" / "it.log", clock=lambda: 0.0) as log:
        write(log, program)
    lines = log.path.read_text().splitlines()
    assert lines[:-2] == [line.format(i % 60) for i in range(MAX_REPEATS)]
    assert lines[-2] == "the last word"
    assert lines[-1].startswith(f"[{100_000 - MAX_REPEATS} lines were left out")


def test_lines_of_all_kinds_have_a_rate(tmp_path):
    program = "import os\nfor _ in range(40): print(os.urandom(50_000).hex().translate(str.maketrans('012', 'xyz')))"
    with Log(tmp_path / "logs" / "it.log", clock=lambda: 0.0) as log:
        write(log, program)
    assert MAX_WINDOW_BYTES / 2 < size_of(log) <= MAX_WINDOW_BYTES + 200


def test_a_log_is_rotated_and_never_larger_than_its_bound(tmp_path):
    """The clock starts a new window at every check of the log."""
    times = itertools.count(step=2 * WINDOW_S)
    program = "import os\nfor _ in range(4000): print(os.urandom(5_000).hex())"
    with Log(tmp_path / "logs" / "it.log", clock=lambda: next(times)) as log:
        write(log, program)
    assert {path.name for path in log.path.parent.iterdir()} == {"it.log", *(f"it.log.{i + 1}" for i in range(3))}
    assert BOUND_BYTES / 2 < size_of(log) <= BOUND_BYTES


def test_the_log_of_the_start_before_is_kept(tmp_path):
    for word in ("one", "two"):
        with Log(tmp_path / "logs" / "it.log") as log:
            assert write(log, f"print({word!r})") == f"{word}\n"
            assert write(log, "print('again')") == "again\n"
    assert log.path.read_text() == "one\nagain\ntwo\nagain\n"
    assert log.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_log_is_open_as_long_as_a_program_uses_it(tmp_path):
    descriptors = psutil.Process().num_fds()
    log = Log(tmp_path / "logs" / "it.log")
    with log:
        with log:
            write(log, "print('one')")
        write(log, "print('two')")
    assert log.path.read_text() == "one\ntwo\n"
    assert psutil.Process().num_fds() <= descriptors


def test_a_childs_descendants_do_not_hold_the_log_open(tmp_path):
    program = "import subprocess; subprocess.Popen(['sleep', '60']); print('half a line', end='')"
    with Log(tmp_path / "logs" / "it.log") as log:
        child = start([sys.executable, "-c", program], log=log)
        child.wait()
        assert child.log() == "half a line"
    assert log.path.read_text() == "half a line\n"
    child.end()


def test_the_end_of_a_long_log_is_kept_in_memory(tmp_path):
    with Log(tmp_path / "logs" / "it.log") as log:
        told = write(log, "print('x\\n' * 500_000 + 'the end')")
    assert len(told) == TAIL_BYTES
    assert told.endswith("the end\n")


def test_a_full_disk_loses_lines_and_no_child(tmp_path):
    (tmp_path / "logs").mkdir(mode=0o700)
    (tmp_path / "logs" / "it.log").symlink_to("/dev/full")
    with Log(tmp_path / "logs" / "it.log") as log:
        assert write(log, "print('one')") == "one\n"


def test_a_line_that_never_ends_is_broken(tmp_path):
    with Log(tmp_path / "logs" / "it.log", clock=lambda: 0.0) as log:
        assert len(write(log, "print('x' * 1_000_000, end='')")) == TAIL_BYTES
    assert 900_000 < size_of(log) <= MAX_WINDOW_BYTES + 200


def test_a_new_window_resets_the_quota():
    quota = Quota()
    assert quota.end_window(1.0) == 0
    assert [quota.allows(b"the same") for _ in range(MAX_REPEATS + 2)] == [True] * MAX_REPEATS + [False] * 2
    assert quota.end_window(1.0 + WINDOW_S / 2) == 0
    assert not quota.allows(b"the same")
    assert quota.end_window(1.0 + WINDOW_S) == 3
    assert quota.allows(b"the same")
