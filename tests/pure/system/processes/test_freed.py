"""Freed memory goes back to the system."""

import json
import os
import subprocess
import sys

from sie_triton.system.processes.freed_memory import LARGE_BLOCKS, PassReturner, Returner

MIB = 2**20

# Prints the anonymous memory in MiB before and after `return_freed`, of a process that holds 64 MiB in a cycle.
CYCLE = """
import gc
from sie_triton.system.host.process_memory import return_freed
from sie_triton.system.host.process_memory import private_bytes
gc.disable()
cycle = [bytearray(b"x") * (64 * 2**20)]
cycle.append(cycle)
del cycle
before = private_bytes()
return_freed()
print([before >> 20, private_bytes() >> 20])
"""

# Prints the anonymous memory in MiB before, with 16 blocks of 16 MiB, and after all but the last are freed.
BLOCKS = """
from sie_triton.system.host.process_memory import private_bytes
def block(): return bytearray(b"x") * (16 * 2**20)
first = block(); del first  # a freed block tells glibc to keep blocks of its size in a heap
told = [private_bytes() >> 20]
blocks = [block() for _ in range(16)]
told.append(private_bytes() >> 20)
del blocks[:-1]
print([*told, private_bytes() >> 20])
"""


# Prints the page faults of each of 100 buffers that are filled and freed.
BUFFERS = """
from resource import RUSAGE_SELF, getrusage
def buffer(): return bytearray(b"x") * (256 * 2**10)
for _ in range(100): buffer()
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(100): buffer()
print([(getrusage(RUSAGE_SELF).ru_minflt - before) // 100])
"""


def run(program: str, **environment: str) -> list[int]:
    command = [sys.executable, "-c", program]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    found: list[int] = json.loads(subprocess.check_output(command, env={**plain, **environment}, text=True))
    return found


def test_a_cycle_is_collected_and_its_memory_returned():
    before, after = run(CYCLE)
    assert before - after >= 60


def test_large_blocks_are_returned_whatever_follows_them():
    start, held, left = run(BLOCKS, **LARGE_BLOCKS)
    assert held - start >= 250
    assert left - start <= 20


def test_receive_buffers_keep_their_pages():
    assert run(BUFFERS, **LARGE_BLOCKS) == [0]


def test_memory_is_returned_only_when_it_has_grown():
    memory, returns = [100 * MIB], []

    def give_back() -> None:
        returns.append(memory[0])
        memory[0] -= 2 * MIB

    returner = Returner(lambda: memory[0], give_back)
    for grown in (
        0,
        Returner.slack_bytes - 1,
        Returner.slack_bytes,
        Returner.slack_bytes + MIB,
        2 * Returner.slack_bytes,
    ):
        memory[0] = 100 * MIB + grown
        returner.look()
    assert returns == [100 * MIB + Returner.slack_bytes, 100 * MIB + 2 * Returner.slack_bytes]


class Worker:
    """Memory of a worker: what it needs, and what passes have left free."""

    def __init__(self, pass_bytes: int) -> None:
        self.need, self.free, self.passes, self.returns = 100 * MIB, 0, (0, 0), 0
        self.returner = PassReturner(pass_bytes, lambda: self.passes, lambda: self.need + self.free, self.give_back)

    def give_back(self) -> None:
        self.free, self.returns = 0, self.returns + 1

    def work(self, free: int) -> None:
        self.passes, self.free = (self.passes[0] + 1, self.passes[1] + 1), self.free + free
        self.returner.look()


def test_a_worker_at_rest_returns_what_its_passes_left_once():
    worker = Worker(50 * MIB)
    worker.work(MIB)
    assert worker.returns == 0
    for _ in range(3):
        worker.returner.look()
    assert (worker.free, worker.returns) == (0, 1)


def test_a_worker_in_a_long_pass_does_not_rest():
    worker = Worker(50 * MIB)
    worker.passes, worker.free = (1, 0), MIB
    for _ in range(3):
        worker.returner.look()
    assert worker.returns == 0


def test_a_worker_at_work_keeps_what_its_passes_need_and_no_more():
    worker = Worker(50 * MIB)
    worker.work(50 * MIB + PassReturner.slack_bytes - 1)
    assert worker.returns == 0
    worker.need += 20 * MIB  # of a pass in progress
    worker.work(1)
    assert worker.returns == 1
    worker.need -= 20 * MIB
    worker.work(50 * MIB + PassReturner.slack_bytes)
    assert worker.returns == 2
