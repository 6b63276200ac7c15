"""Messages and large arrays between two real processes, one of which may die at any moment."""

import errno
import gc
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from sie_triton.system.processes import channel as module
from sie_triton.system.processes.channel import KEEP_BYTES, LARGE_BYTES, Channel
from tests.support.controller import wait_for

MB = 1024 * 1024


@contextmanager
def peer(serve: Callable[[Channel], object]) -> Iterator[tuple[Channel, int]]:
    """Yield our end, and the process id of a process that runs `serve` with the other."""
    ours, theirs = socket.socketpair()
    pid = forked()
    if pid == 0:
        ours.close()
        with suppress(EOFError, OSError):
            serve(Channel(theirs))
        os._exit(0)
    theirs.close()
    channel = Channel(ours)
    try:
        yield channel, pid
    finally:
        channel.close()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def forked() -> int:
    """Fork. The child collects no garbage: a client of gRPC that an earlier test left would wait for a lost thread."""
    pid = os.fork()
    if pid == 0:
        gc.disable()
    return pid


def echo(channel: Channel) -> None:
    while True:
        channel.send(channel.recv())


def numbers(num_bytes: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, num_bytes, np.uint8)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, np.ndarray):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and bool(np.all(left == right))
    return type(left) is type(right) and left == right


@pytest.fixture(autouse=True)
def nothing_stays_behind():
    """Check that no descriptor and no mapping is left."""
    before, num_mappings = descriptors(), mappings()
    yield
    wait_for(lambda: descriptors() <= before)  # threads of earlier tests may open and close others meanwhile
    assert mappings() == num_mappings


def descriptors() -> set[tuple[str, str]]:
    """Return number and target of each open socket and memory, which is what channels consist of.

    gRPC, which earlier tests used, gives its own descriptors other numbers at each fork.
    """
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one of this listing
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return {(number, target) for number, target in found if target.startswith(("socket:", "/memfd:"))}


def mappings(pid: int | str = "self") -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:channel")


# --- what goes through


MESSAGES = {
    "small": {"input_ids": np.arange(12, dtype=np.int32), "outputs": frozenset({"dense"})},
    "large": {"multivector": np.arange(2 * MB, dtype=np.float32).reshape(-1, 128)},
    "at the border": [numbers(LARGE_BYTES - 1), numbers(LARGE_BYTES), numbers(LARGE_BYTES + 1)],
    "columns first": np.asfortranarray(numbers(2 * LARGE_BYTES).reshape(-1, 64)),
    "every other": numbers(4 * LARGE_BYTES)[::2],
    "nothing": [np.zeros((0, 64), np.float32), np.zeros((), np.float64), np.float32(3), None],
    "other kinds": [np.array(["a", "bc"] * LARGE_BYTES), np.array([{}, None]), np.zeros(LARGE_BYTES, "M8[s]")],
    "many": [numbers(100, i).view(np.int32) for i in range(500)],
    "long text": "x" * 3 * MB,
}


@pytest.mark.parametrize("what", MESSAGES)
def test_messages_arrive_unchanged(what):
    with peer(echo) as (channel, _):
        for _ in range(3):
            channel.send(MESSAGES[what])
            assert channel.poll(20)
            assert same(channel.recv(), MESSAGES[what])


def test_later_messages_do_not_change_a_received_array_which_is_writable():
    first, second = numbers(2 * LARGE_BYTES, 1), numbers(2 * LARGE_BYTES, 2)
    with peer(echo) as (channel, _):
        channel.send(first)
        received = channel.recv()
        channel.send(second)
        channel.recv()
        np.testing.assert_array_equal(received, first)
        received[:] = 0


def test_memory_grows_as_needed_and_is_used_again():
    with peer(echo) as (channel, pid):
        for size in (1, 2, 3, 2, 1, 5, 8, 4, 8):
            message = [numbers(size * MB, size), numbers(LARGE_BYTES, 0)]
            channel.send(message)
            assert same(channel.recv(), message)
            # One for each direction.
            assert mappings() <= 2
            assert mappings(pid) <= 2
        assert len(channel._own_memory) == len(channel._peer_memory)
        kept = channel._own_memory
        channel.send(numbers(8 * MB))
        channel.recv()
        assert channel._own_memory is kept


def test_very_much_memory_is_given_back():
    with peer(echo) as (channel, pid):
        for _ in range(2):
            message = numbers(KEEP_BYTES + 1)
            channel.send(message)
            assert same(channel.recv(), message)
            assert mappings() == 0
        channel.send(numbers(MB))
        assert same(channel.recv(), numbers(MB))
        assert mappings() == 2
        assert mappings(pid) == 2


def test_messages_that_are_not_waited_for_do_not_overwrite_each_other():
    """The other end reads all of them after the last was sent."""
    messages = [numbers(2 * LARGE_BYTES, seed) for seed in range(3)]

    def late(channel: Channel) -> None:
        time.sleep(0.3)
        for _ in messages:
            channel.send(channel.recv())

    with peer(late) as (channel, _):
        for message in messages:
            channel.send(message)
        for message in messages:
            assert same(channel.recv(), message)


def test_messages_that_cross_are_not_overwritten():
    """A message that is no answer says nothing about ours: it was sent before ours was read."""
    first, second = numbers(2 * LARGE_BYTES, 1), numbers(2 * LARGE_BYTES, 2)

    def unasked(channel: Channel) -> None:
        channel.send("unasked")
        time.sleep(0.3)
        channel.send([channel.recv(), channel.recv()])

    with peer(unasked) as (channel, _):
        channel.send(first)
        assert channel.recv() == "unasked"
        channel.send(second)
        assert same(channel.recv(), [first, second])


# --- a peer that dies


def test_a_peer_that_ends_between_messages():
    with peer(lambda channel: channel.send(channel.recv())) as (channel, _):
        channel.send(numbers(MB))
        assert same(channel.recv(), numbers(MB))
        with pytest.raises(EOFError):
            channel.recv()
        with pytest.raises(OSError, match="Broken pipe"):
            channel.send("anybody there?")


@pytest.mark.parametrize("size", [10, 1000, 2 * MB])
def test_a_peer_that_dies_in_the_middle_of_a_message(size, monkeypatch):
    """The peer dies after each number of bytes that could have been sent."""
    left, right = socket.socketpair()
    channel = Channel(left)
    channel.send(["x" * 100, numbers(size)])
    sent = right.recv(10**7)
    left.close()
    right.close()
    for num_bytes in range(0, len(sent), 1 + len(sent) // 50):
        ours, theirs = socket.socketpair()
        theirs.sendall(sent[:num_bytes])
        theirs.close()
        half = Channel(ours)
        with pytest.raises(EOFError):
            half.recv()
        half.close()
    channel.close()


def test_a_blocked_send_fails_when_the_stopped_peer_is_killed():
    """The socket is full, and the sender blocks."""
    with peer(lambda channel: time.sleep(60)) as (channel, pid):
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(OSError, match=r"Broken pipe|reset"):
            channel.send("x" * 50 * MB)


# --- memory that is not there


def limited(limit: int, num_bytes: int) -> Callable[[Channel], None]:
    """Answer with so many bytes, under a limit of the process that they exceed; report where there is none."""

    def serve(channel: Channel) -> None:
        answer = numbers(num_bytes)
        allowed = num_bytes // 2 + (psutil.Process().memory_info().vms if limit == resource.RLIMIT_AS else 0)
        resource.setrlimit(limit, (allowed, allowed))
        while True:
            question = channel.recv()
            try:
                channel.send(answer if question == "large" else "small")
            except MemoryError:
                channel.send("no memory")

    return serve


@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_FSIZE])
def test_no_memory_to_send_is_a_memory_error_and_the_channel_goes_on(limit):
    with peer(limited(limit, 64 * MB)) as (channel, _):
        for question, answer in (("large", "no memory"), ("small", "small"), ("large", "no memory")):
            channel.send(question)
            assert channel.recv() == answer


def test_no_memory_to_receive_is_a_memory_error_and_the_channel_goes_on(monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    with peer(echo) as (channel, _):
        with monkeypatch.context() as patch:
            channel.send(numbers(MB))
            patch.setattr(module, "mmap", fails)
            with pytest.raises(MemoryError):
                channel.recv()
        # The memory that could not be mapped is tried again: its descriptor comes only once.
        for seed in (1, 2):
            channel.send(numbers(MB, seed))
            assert same(channel.recv(), numbers(MB, seed))


def test_shared_memory_is_fully_allocated_before_it_is_written():
    """A page that the system could not supply later would end the process."""
    memory, descriptor = module._memory(MB)
    assert os.fstat(descriptor).st_blocks * 512 >= MB == len(memory)
    memory.close()
    os.close(descriptor)
