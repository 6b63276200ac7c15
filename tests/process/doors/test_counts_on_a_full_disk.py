"""Mapped files on a full disk: a write to one of their holes would end the process with SIGBUS."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

START = """
import os, sys
from contextlib import suppress
from pathlib import Path

disk = Path(sys.argv[1])
os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(disk)

def fill():
    with suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
"""

COUNTS = """
from sie_triton.doors import counts

def count_much():
    for number in range(50):
        counts.count(f"/route/{number}", 200, 0.1)
    return b"/route/49" in counts.exposition()
"""

RECORDS = """
from sie_triton.records.calls import CallBook, Calls
from sie_triton.records.status import StatusWriter
"""


def on_a_small_disk(tmp_path: Path, program: str) -> list[str]:
    """Run a program in a mount namespace of its own, where its disk is small; return its lines."""
    mount = f'mount -t tmpfs -o size=3m none {tmp_path} && exec "$@"'
    shell = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    if (tried := subprocess.run([*shell, "true"], capture_output=True, text=True)).returncode:
        pytest.skip(f"no mount namespace: {tried.stderr}")
    command = [*shell, sys.executable, "-c", START + program, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_requests_are_counted_while_the_disk_is_full(tmp_path):
    program = COUNTS + "counts.reserve_files(); counts.count('/first', 200, 0.1); fill(); print(count_much())"
    assert on_a_small_disk(tmp_path, program) == ["True"]


def test_a_door_that_starts_on_a_full_disk_answers_without_counts(tmp_path):
    program = COUNTS + "fill(); counts.reserve_files(); print(count_much())"
    assert on_a_small_disk(tmp_path, program) == ["False"]


def test_records_need_their_space_when_they_are_made_and_not_later(tmp_path):
    program = """
book, status = CallBook(disk), StatusWriter(disk, "m", "inference", 0)
fill()
for _ in range(5000):
    with book.call() as token:
        Calls(disk, "inference").find(token["sie_call"]).hold()
status.add(num_requests=1)
for make in (lambda: StatusWriter(disk, "n", "inference", 0), lambda: CallBook(disk / "new")):
    try:
        make()
    except OSError as exc:
        print(exc.strerror)
"""
    assert on_a_small_disk(tmp_path, RECORDS + program) == ["No space left on device"] * 2
