"""Preprocessing slots between real processes."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sie_triton.host.file_locks import Line, LockFile
from sie_triton.scheduling.slots import SLOTS, SMALL_TURN, Slots
from tests.support.controller import wait_for

# Takes a slot, or `count` bytes, says so, and gives it back when its input ends.
HOLDER = """
import sys
from sie_triton.host.file_locks import Line, LockFile
from sie_triton.scheduling.slots import Slots

path, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
slots, memory = Slots(LockFile(path), 4, 4), Line(LockFile(path), 0, 1, 101)
held = [memory.wait(count)] if kind == "memory" else [getattr(slots, kind)() for _ in range(count)]
print("taken", flush=True)
sys.stdin.read()
for lock in held:
    lock.release()
"""


@contextmanager
def holder(path: Path, kind: str, count: int = 1) -> Iterator["subprocess.Popen[str]"]:
    """A process that takes `count` slots of a `kind`, or as many bytes of memory."""
    command = [sys.executable, "-c", HOLDER, str(path), kind, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def has_taken(process: "subprocess.Popen[str]") -> bool:
    assert process.stdout
    return process.stdout.readline() == "taken\n"


@pytest.fixture
def path(tmp_path):
    return tmp_path / "slots"


@pytest.fixture
def slots(path):
    return Slots(LockFile(path), 4, 4)


def test_processes_share_the_slots(path, slots):
    with holder(path, "bulk", 2) as one, holder(path, "small") as another:
        assert has_taken(one)
        assert has_taken(another)
        assert slots.num_taken == 3
        last = slots.at_once()
        assert last is not None
        assert slots.at_once() is None
        last.release()
        assert slots.num_taken == 3


@pytest.mark.parametrize(("kind", "count"), [("bulk", 3), ("small", 4)])
def test_a_killed_process_gives_its_slots_back(path, slots, kind, count):
    with holder(path, kind, count) as process:
        assert has_taken(process)
        assert slots.num_taken == count
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert slots.num_taken == 0


def test_a_process_that_is_killed_while_first_in_line_leaves_the_line(path, slots):
    with ExitStack() as held:
        for _ in range(4):
            held.enter_context(slots.small())
        with holder(path, "small") as process:
            wait_for(lambda: LockFile(path).is_locked(SMALL_TURN))
            process.kill()
            process.wait()
            assert not LockFile(path).is_locked(SMALL_TURN)


def test_threads_of_one_process_exclude_each_other(slots):
    taken = [slots.at_once() for _ in range(5)]
    assert [lock is None for lock in taken] == [False] * 4 + [True]


def test_bulk_work_leaves_one_slot_to_small_requests(slots):
    held = [slots.bulk() for _ in range(3)]
    assert slots.num_bulk == 3
    more = Taker(slots.bulk)
    wait_for(lambda: slots.has_bulk_waiting)
    small = slots.at_once()
    assert small is not None
    small.release()
    assert not more.has_taken.is_set()
    held[0].release()
    assert more.has_taken.wait(60)


class Taker(threading.Thread):
    """A thread that takes a lock, and gives it back when the test says so."""

    def __init__(self, take, log=None, name=""):
        super().__init__(daemon=True)
        self.take, self.log, self.name = take, log, name
        self.has_taken, self.may_release = threading.Event(), threading.Event()
        self.start()

    def run(self):
        with self.take():
            if self.log is not None:
                self.log.append(self.name)
            self.has_taken.set()
            assert self.may_release.wait(60)


class Watched(Line):
    """Counts how often bulk work has seen a small request in line."""

    num_seen = 0

    @property
    def has_waiting(self) -> bool:
        is_waiting = super().has_waiting
        self.num_seen += is_waiting
        return is_waiting


def test_a_small_request_of_another_process_gets_the_next_slot_before_bulk_work(path):
    """All four slots are held. Bulk work has waited longer; a small request comes after it."""
    locks = LockFile(path)
    small = Watched(locks, SMALL_TURN, SLOTS, SLOTS + 4)
    bulk = Line(locks, 1, SLOTS, SLOTS + 4, small, max_yields=10**9)
    held = [bulk.wait() for _ in range(4)]
    behind = Taker(bulk.wait)
    wait_for(lambda: bulk.has_waiting)
    with holder(path, "small") as process:
        wait_for(lambda: small.num_seen)  # by the thread behind, after which it takes no slot
        held[0].release()
        assert has_taken(process)
        assert not behind.has_taken.is_set()
        process.stdin.close()
        assert behind.has_taken.wait(60)


def test_bulk_work_does_not_starve_behind_small_requests(path):
    locks = LockFile(path)
    with locks.wait(SMALL_TURN):
        assert Line(locks, 1, SLOTS, SLOTS + 4, Line(locks, SMALL_TURN, SLOTS, SLOTS + 4), max_yields=3).wait()


def test_bulk_work_takes_turns(path):
    """Work that gives its slot back does not get it again before another that waits."""
    bulk, log = Line(LockFile(path), 1, SLOTS, SLOTS + 1), []
    first = bulk.wait()
    other = Taker(bulk.wait, log, "other")
    wait_for(lambda: bulk.has_waiting)
    again = Taker(bulk.wait, log, "again")
    first.release()
    assert other.has_taken.wait(60)
    other.may_release.set()
    assert again.has_taken.wait(60)
    assert log == ["other", "again"]


def test_images_have_a_bound_of_their_own_and_count_as_workers(path):
    slots = Slots(LockFile(path), 4, 1)
    with slots.image():
        assert slots.num_taken == 1
        other = Taker(slots.image)
        texts = [slots.bulk() for _ in range(2)]
        assert slots.num_taken == 3
        assert not other.has_taken.is_set()
        for each in texts:
            each.release()
    assert other.has_taken.wait(60)


def test_one_worker_serves_all(path):
    slots = Slots(LockFile(path), 1, 4)
    for take in (slots.small, slots.bulk, slots.image):
        with take():
            assert slots.num_taken == 1
            assert slots.at_once() is None
    assert slots.num_taken == 0


def test_memory_of_a_killed_process_is_free_again(path):
    memory = Line(LockFile(path), 0, 1, 101)
    with holder(path, "memory", 60) as process:
        assert has_taken(process)
        assert memory.at_once(41) is None
        with memory.wait(40):
            assert memory.at_once(1) is None
        process.kill()
        process.wait()
        assert memory.at_once(100) is not None


def test_memory_between_two_locks_is_found(path):
    memory = Line(LockFile(path), 0, 1, 101)
    first, between, last = memory.wait(30), memory.wait(20), memory.wait(50)
    assert memory.at_once(1) is None
    between.release()
    assert memory.at_once(21) is None
    assert memory.at_once(20) is not None
    first.release()
    last.release()
