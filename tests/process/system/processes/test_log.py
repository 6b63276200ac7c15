"""Log files of child processes are bounded, rotated, and kept across restarts."""

import itertools
import sys

import psutil

from sie_triton.system.processes.child import start
from sie_triton.system.processes.limits import ProcessLimits
from sie_triton.system.processes.log import Log, Quota

SMALL = ProcessLimits(
    max_file_bytes=100_000, max_window_bytes=100_000, max_repeats=10, max_line_bytes=10_000, tail_bytes=5000
)
MAX_REPEATS, WINDOW_S = SMALL.max_repeats, SMALL.window_s
BOUND_BYTES = (1 + SMALL.num_old_files) * SMALL.max_file_bytes


def write(log: Log, program: str) -> str:
    """Return the log of a child that runs `program`, as its parent reads it."""
    child = start([sys.executable, "-c", program], log=log)
    child.end(60)
    return child.log()


def size_of(log: Log) -> int:
    return sum(path.stat().st_size for path in log.path.parent.iterdir())


def test_repeated_lines_are_limited_and_the_rest_counted(tmp_path):
    line = "ERROR 12:00:{:02d} accept failed: Too many open files"
    program = f"for i in range(1000): print({line!r}.format(i % 60))\nprint('the last word')"
    with Log(tmp_path / "logs" / "it.log", clock=lambda: 0.0, limits=SMALL) as log:
        write(log, program)
    lines = log.path.read_text().splitlines()
    assert lines[:-2] == [line.format(i % 60) for i in range(MAX_REPEATS)]
    assert lines[-2] == "the last word"
    assert lines[-1].startswith(f"[{1000 - MAX_REPEATS} lines were left out")


def test_lines_of_all_kinds_have_a_rate(tmp_path):
    program = "import os\nfor _ in range(40): print(os.urandom(5_000).hex().translate(str.maketrans('012', 'xyz')))"
    with Log(tmp_path / "logs" / "it.log", clock=lambda: 0.0, limits=SMALL) as log:
        write(log, program)
    assert SMALL.max_window_bytes / 2 < size_of(log) <= SMALL.max_window_bytes + 200


def test_a_log_is_rotated_and_never_larger_than_its_bound(tmp_path):
    """The clock starts a new window at every check of the log."""
    times = itertools.count(step=2 * WINDOW_S)
    program = "import os\nfor _ in range(8000): print(os.urandom(500).hex())"
    with Log(tmp_path / "logs" / "it.log", clock=lambda: next(times), limits=SMALL) as log:
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
    with Log(tmp_path / "logs" / "it.log", limits=SMALL) as log:
        told = write(log, "print('x\\n' * 50_000 + 'the end')")
    assert len(told) == SMALL.tail_bytes
    assert told.endswith("the end\n")


def test_a_full_disk_loses_lines_and_no_child(tmp_path):
    (tmp_path / "logs").mkdir(mode=0o700)
    (tmp_path / "logs" / "it.log").symlink_to("/dev/full")
    with Log(tmp_path / "logs" / "it.log") as log:
        assert write(log, "print('one')") == "one\n"


def test_a_line_that_never_ends_is_broken(tmp_path):
    with Log(tmp_path / "logs" / "it.log", clock=lambda: 0.0, limits=SMALL) as log:
        assert len(write(log, "print('x' * 90_000, end='')")) == SMALL.tail_bytes
    assert 90_000 < size_of(log) <= 90_200


def test_a_new_window_resets_the_quota():
    quota = Quota(SMALL)
    assert quota.end_window(1.0) == 0
    assert [quota.allows(b"the same") for _ in range(MAX_REPEATS + 2)] == [True] * MAX_REPEATS + [False] * 2
    assert quota.end_window(1.0 + WINDOW_S / 2) == 0
    assert not quota.allows(b"the same")
    assert quota.end_window(1.0 + WINDOW_S) == 3
    assert quota.allows(b"the same")
