"""Metrics of door processes, which share a directory: what those that have ended leave is removed, or used again."""

import fcntl
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from sie_triton.doors import counts
from sie_triton.doors.counts import DIRECTORY, GAUGES, NUM_BYTES, TOTALS, exposition, reserve_files
from sie_triton.system.host.files import reserve

ROOT = Path(__file__).parents[3]
KINDS = (*TOTALS, *GAUGES)

COUNTS = """
from sie_triton.doors.counts import count, exposition, reserve_files
reserve_files()
count("/route", 200, 0.1)
print(exposition().decode(), end="", flush=True)
"""
WAITS = "print(flush=True); input()"


def door(directory: Path, program: str) -> subprocess.Popen[str]:
    """Start a process that shares the metrics in `directory`."""
    command, environment = [sys.executable, "-c", program], {**os.environ, DIRECTORY: str(directory)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True)


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_a_process_goes_on_with_the_files_of_one_that_has_ended_and_not_of_one_that_runs(tmp_path):
    """A door that ends again and again must not fill the disk."""
    with door(tmp_path, COUNTS + WAITS) as other:
        while other.stdout.readline().strip():
            pass
        for number in range(2, 5):
            with door(tmp_path, COUNTS) as ends:
                text = ends.stdout.read()
            assert f'_count{{route="/route",status="200"}} {number}.0\n' in text
        assert names(tmp_path) == {f"{kind}_{pid}.db" for kind in KINDS for pid in (other.pid, ends.pid)}
        other.kill()


@pytest.mark.parametrize("left", [b"", b"counts", bytes(NUM_BYTES + 1)])
@pytest.mark.parametrize("pid", [999999999, os.getpid()], ids=["another", "own"])
def test_files_that_are_used_again_have_their_space_and_keep_their_content(tmp_path, monkeypatch, left, pid):
    """Also those of a process that had the same pid."""
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    for kind in KINDS:
        (tmp_path / f"{kind}_{pid}.db").write_bytes(left)
    reserve_files()
    assert names(tmp_path) == {f"{kind}_{os.getpid()}.db" for kind in KINDS}
    size = max(NUM_BYTES, len(left))
    for kind in KINDS:
        path = tmp_path / f"{kind}_{os.getpid()}.db"
        assert path.read_bytes() == (bytes(NUM_BYTES) if kind in GAUGES else left.ljust(size, b"\0"))
        assert path.stat().st_blocks * 512 >= path.stat().st_size


def test_no_file_is_renamed_while_metrics_are_read(tmp_path, monkeypatch):
    """Counts would be missing, and seem to go back."""
    locked: list[bool] = []

    def check(kind: int) -> None:
        handle = os.open(tmp_path, os.O_RDONLY)
        with suppress(BlockingIOError):
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            locked.append(False)
        os.close(handle)
        locked.append(True)

    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    monkeypatch.setattr(counts, "MultiProcessCollector", lambda registry, path: check(fcntl.LOCK_EX))
    monkeypatch.setattr(counts, "_continue", lambda directory, kind: check(fcntl.LOCK_SH))
    exposition()
    reserve_files()
    assert locked == [True, True, True]


def test_who_asks_for_metrics_gets_no_gauge_of_a_process_that_has_ended(tmp_path, monkeypatch):
    """Its totals stay."""
    monkeypatch.setenv(DIRECTORY, str(tmp_path))
    for kind in KINDS:
        reserve(tmp_path / f"{kind}_999999999.db", NUM_BYTES)
    reserve(tmp_path / f"gauge_livemax_{os.getpid()}.db", NUM_BYTES)
    exposition()
    kept = (*(f"{kind}_999999999.db" for kind in TOTALS), f"gauge_livemax_{os.getpid()}.db")
    assert names(tmp_path) == {*kept}
