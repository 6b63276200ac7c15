"""Preprocessing slots between real processes."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sie_triton.pipeline.scheduling.preprocess_slots import IMAGE_TURN, SLOTS, Slots
from sie_triton.system.host.file_locks import Line, LockFile
from tests.support.controller import wait_for

# Takes `count` slots, or as many bytes, says so, and gives them back when its input ends.
HOLDER = """
import sys
from contextlib import ExitStack
from sie_triton.system.host.file_locks import Line, LockFile
from sie_triton.pipeline.scheduling.preprocess_slots import Slots

path, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
slots, memory = Slots(LockFile(path), 4, 4), Line(LockFile(path), 0, 1, 101)
with ExitStack() as held:
    for _ in range(1 if kind == "memory" else count):
        held.enter_context(memory.wait(count) if kind == "memory" else getattr(slots, kind)())
    print("taken", flush=True)
    sys.stdin.read()
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
    with holder(path, "bulk", 2) as one, holder(path, "bulk") as another:
        assert has_taken(one)
        assert has_taken(another)
        assert slots.num_taken == 3
        with slots.bulk(), ExitStack() as last:
            last.enter_context(slots.bulk())
            more = Taker(slots.bulk)
            wait_for(lambda: slots.has_waiting)
            assert not more.has_taken.is_set()
            last.close()
            assert more.has_taken.wait(60)
            assert slots.num_taken == 5
            more.may_release.set()


@pytest.mark.parametrize("kind", ["bulk", "image", "drawing"])
def test_one_process_leaves_a_slot_of_each_kind_to_others(path, kind):
    """However many threads it has; another process, of another model, gets it at once."""
    slots = Slots(LockFile(path), 2, 4)
    takers = [Taker(getattr(slots, kind)) for _ in range(6)]
    wait_for(lambda: sum(taker.has_taken.is_set() for taker in takers) == 2)
    with holder(path, kind) as process:
        assert has_taken(process)
        assert sum(taker.has_taken.is_set() for taker in takers) == 2
    for taker in takers:
        taker.may_release.set()
    for taker in takers:
        taker.join(60)


def test_a_killed_process_gives_its_slots_back(path, slots):
    with holder(path, "bulk", 4) as process:
        assert has_taken(process)
        assert slots.num_taken == 4
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert slots.num_taken == 0


def test_a_process_that_is_killed_while_first_in_line_leaves_the_line(path, slots):
    with ExitStack() as held:
        for each in (*[slots] * 4, Slots(LockFile(path), 4, 4)):
            held.enter_context(each.bulk())
        with holder(path, "bulk") as process:
            wait_for(lambda: slots.has_waiting)
            process.kill()
            process.wait()
            assert not slots.has_waiting


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
    again.may_release.set()
    assert log == ["other", "again"]


def test_images_have_a_bound_of_their_own_and_count_as_workers(path):
    slots, *others = (Slots(LockFile(path), 4, 1) for _ in range(3))
    with slots.image(), others[0].image():
        assert slots.num_taken == 2
        other = Taker(others[1].image)
        wait_for(lambda: LockFile(path).is_locked(IMAGE_TURN))
        with slots.bulk(), slots.bulk():
            assert slots.num_taken == 4
            assert not other.has_taken.is_set()
    assert other.has_taken.wait(60)
    other.may_release.set()


def test_one_worker_serves_all(path):
    slots = Slots(LockFile(path), 1, 4)
    for take in (slots.bulk, slots.image):
        with take():
            assert slots.num_taken == 1
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
