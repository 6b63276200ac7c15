"""Messages between two processes; large arrays go through memory that both have mapped.

A message is pickled and goes through a socket. Arrays of LARGE_BYTES and more are copied into memory of the sender's
(a memfd: it has no name, and is gone with the last process that has it), whose descriptor goes along with the first
message that needs it. The receiver copies them out before it has the message, so that what it gets is its own. The
sender writes there again once the other end has said that it has read the message; until then all goes through
the socket. A message is there whole or not at all, whenever one of the processes ends.
"""

import errno
import os
import pickle
import select
import socket
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copyreg import dispatch_table
from dataclasses import fields
from io import BytesIO
from mmap import ACCESS_READ, mmap
from operator import attrgetter
from struct import Struct
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

# Below, two copies through the socket are as fast.
LARGE_BYTES = 32 * 1024

# Memory of more than this is given back after each message.
KEEP_BYTES = 32 * 1024 * 1024

READ_BYTES = 64 * 1024
NO_MEMORY = {errno.ENOMEM, errno.ENOSPC, errno.EFBIG}

NUMBERS = "biufc"  # kinds of their dtypes

# Bytes of the pickle; large arrays; whether their memory is new; messages that the sender has received.
HEADER = Struct("<QIIQ")
SIZE = Struct("<Q")

SPACE = socket.CMSG_SPACE(array("i").itemsize)

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

Sent = TypeVar("Sent")
Received = TypeVar("Received")
Message = TypeVar("Message")


class Channel(Generic[Sent, Received]):
    """One end, for one thread at a time. `end` is this object's to close.

    OSError or EOFError where the other end is gone; MemoryError where there is no memory for the arrays of a message:
    one that was to be sent is not, one that came is lost, and the channel is as good as before.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._num_sent = self._num_received = self._num_read_there = 0
        self._ours: mmap | None = None
        self._theirs: mmap | None = None
        self._unread = bytearray()
        self._descriptors: list[int] = []

    def send(self, message: Sent) -> None:
        large: list[memoryview] = []
        data = _pickled(message, large if self._num_read_there == self._num_sent else None)
        sizes = [part.nbytes for part in large]
        new = self._write(large, sum(sizes))
        header = HEADER.pack(len(data), len(sizes), new >= 0, self._num_received)
        try:
            self._transmit(b"".join([header, *map(SIZE.pack, sizes), data]), new)
        finally:
            if new >= 0:
                os.close(new)
        self._num_sent += 1
        if self._ours is not None and len(self._ours) > KEEP_BYTES:
            self._ours = None

    def recv(self) -> Received:
        length, num_large, is_new, num_read_there = HEADER.unpack(self._take(HEADER.size))
        sizes = [SIZE.unpack(self._take(SIZE.size))[0] for _ in range(num_large)]
        data = self._take(length)
        self._num_received += 1
        self._num_read_there = num_read_there
        if is_new:
            self._theirs = None
        # The other end is this user's: who starts or forks it sees to that.
        received: Received = pickle.loads(data, buffers=self._read(sizes))  # noqa: S301
        return received

    def poll(self, seconds: float | None) -> bool:
        """True once there is something to receive, or the other end is gone."""
        if self._unread:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if seconds is None else 1000 * seconds))

    def close(self) -> None:
        self._socket.close()
        self._ours = self._theirs = None
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _write(self, parts: Sequence[memoryview], num_bytes: int) -> int:
        """Copy `parts` into our memory; the descriptor of that where the other end does not have it, else -1."""
        new = -1
        if num_bytes > (0 if self._ours is None else len(self._ours)):
            self._ours, new = _memory(num_bytes + num_bytes // 4)
        offset = 0
        for part in parts:
            assert self._ours is not None
            _bytes(self._ours, part.nbytes, offset)[:] = np.frombuffer(part, np.uint8)
            offset += part.nbytes
        return new

    def _read(self, sizes: Sequence[int]) -> list[Bytes]:
        """Parts of so many bytes, copied out of the other end's memory."""
        if sizes and self._theirs is None:
            self._theirs = self._map()
        parts, offset = [], 0
        for size in sizes:
            assert self._theirs is not None
            parts.append(_bytes(self._theirs, size, offset).copy())
            offset += size
        if self._theirs is not None and len(self._theirs) > KEEP_BYTES:
            self._theirs = None
        return parts

    def _map(self) -> mmap:
        """The other end's memory that came last."""
        if not self._descriptors:
            raise OSError(errno.EMFILE, "no descriptor came with the message: too many files are open")
        with _no_memory():
            mapped = mmap(self._descriptors[-1], 0, access=ACCESS_READ)
        while self._descriptors:
            os.close(self._descriptors.pop())
        return mapped

    def _transmit(self, payload: bytes, descriptor: int) -> None:
        sent = 0
        if descriptor >= 0:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))]
            sent = self._socket.sendmsg([payload], rights, socket.MSG_NOSIGNAL)
        self._socket.sendall(memoryview(payload)[sent:], socket.MSG_NOSIGNAL)

    def _take(self, num_bytes: int) -> bytes:
        try:
            while len(self._unread) < num_bytes:
                data, ancillary, _, _ = self._socket.recvmsg(READ_BYTES, SPACE, socket.MSG_CMSG_CLOEXEC)
                for _, _, rights in ancillary:
                    self._descriptors += array("i", rights)
                if not data:
                    raise EOFError
                self._unread += data
            with memoryview(self._unread)[:num_bytes] as part:
                taken = bytes(part)
            del self._unread[:num_bytes]
        except MemoryError as exc:  # part of a message is lost
            self.close()
            raise OSError(errno.ENOMEM, "no memory for a message") from exc
        return taken


def _pickled(message: object, large: list[memoryview] | None) -> bytes:
    """Large arrays go into `large`, if it is a list."""

    def stays(buffer: pickle.PickleBuffer) -> bool:
        part = buffer.raw()
        if large is None or part.nbytes < LARGE_BYTES:
            return True
        large.append(part)
        return False

    file = BytesIO()
    pickler = pickle.Pickler(file, 5, buffer_callback=stays)
    pickler.dispatch_table = REDUCERS
    pickler.dump(message)
    return file.getvalue()


def _reduced(values: Array) -> Any:
    """Of numbers, in a form that every version of NumPy reads: what NumPy makes of them names its own modules."""
    if values.dtype.kind not in NUMBERS:
        return values.__reduce__()
    return _array, (values.shape, values.dtype.str, pickle.PickleBuffer(np.ascontiguousarray(values).data))


def _array(shape: tuple[int, ...], dtype: str, buffer: Any) -> Array:
    return np.ndarray(shape, dtype, buffer)


REDUCERS: dict[type, Callable[[Any], Any]] = {**dispatch_table, np.ndarray: _reduced}


def sent_by_fields(kind: type[Message]) -> type[Message]:
    """Of a dataclass with two fields or more that is sent often: it is made anew by its fields alone.

    A short message's way there and back takes two thirds of what it does by pickle's way for classes with slots.
    """
    values = attrgetter(*(each.name for each in fields(kind)))  # type: ignore[arg-type]
    REDUCERS[kind] = lambda message: (kind, values(message))
    return kind


def _memory(num_bytes: int) -> tuple[mmap, int]:
    """New memory and its descriptor. All of it is there: a page that is missing later would end the process."""
    descriptor = os.memfd_create("channel", os.MFD_CLOEXEC)
    try:
        with _no_memory():
            os.posix_fallocate(descriptor, 0, num_bytes)
            return mmap(descriptor, num_bytes), descriptor
    except BaseException:
        os.close(descriptor)
        raise


@contextmanager
def _no_memory() -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        if exc.errno in NO_MEMORY:
            raise MemoryError(str(exc)) from exc
        raise


def _bytes(memory: mmap, size: int, offset: int) -> Bytes:
    return np.frombuffer(memory, np.uint8, size, offset)
