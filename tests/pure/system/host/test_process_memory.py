"""Memory that a process takes, and memory that ending it frees."""

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sie_triton.system.host.process_memory import Share, share_of

BYTES = 64 * 2**20
SLACK = 8 * 2**20

# Prints the pid of a fork that shares `size` bytes with it and has half as many of its own.
FORKS = """
import os, sys, time
size = int(sys.argv[1])
shared = bytearray(os.urandom(1024)) * (size // 1024)
pid = os.fork()
own = b"" if pid else bytearray(os.urandom(1024)) * (size // 2048)
if pid == 0:
    print(os.getpid(), flush=True)
sys.stdin.read()
"""


@contextmanager
def forked() -> Iterator[tuple[int, int]]:
    """Pids of a process and its fork. Both have returned their memory at the end."""
    command = [sys.executable, "-c", FORKS, str(BYTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        yield parent.pid, int(parent.stdout.readline())
        parent.stdin.close()
        parent.stdout.read()  # ends with the fork: a process returns its memory before it closes its files


def test_memory_shared_with_a_fork_counts_proportionally():
    with forked() as (parent, fork):
        share = share_of(fork)
        assert abs(share.own - BYTES / 2) < SLACK
        assert abs(share.total - BYTES) < SLACK
        both = share.total + share_of(parent).total
        assert abs(both - 1.5 * BYTES) < 2 * SLACK
    assert share_of(fork) == Share()


def test_a_file_that_was_just_written_is_no_memory(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(1024) * (BYTES // 1024))
    before = share_of(os.getpid())
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert sum(mapped[:: mmap.PAGESIZE]) > 0
        after = share_of(os.getpid())
    assert after.own - before.own < SLACK
    assert after.total - before.total < SLACK
