"""Messages between two processes; large arrays go through shared memory.

A message is pickled and goes through a socket. Arrays of LARGE_BYTES and more are copied into memory of the sender (a
memfd: it has no name, and is freed with the last process that maps it), whose descriptor is sent with the first message
that needs it. The receiver copies the arrays out before `recv` returns, so it owns them. The sender reuses the memory
once the receiver has acknowledged the message; until then everything goes through the socket. A message arrives whole
or not at all, even if one of the processes ends.
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

# Smaller arrays go as fast through the socket, which copies them twice.
LARGE_BYTES = 32 * 1024

# Larger memory is released after each message.
KEEP_BYTES = 32 * 1024 * 1024

NO_MEMORY = {errno.ENOMEM, errno.ENOSPC, errno.EFBIG}

NUMBERS = "biufc"  # kinds of numeric dtypes

# Size of the pickle in bytes; number of large arrays; whether their memory is new; number of messages that the sender
# has received.
HEADER = Struct("<QIIQ")
SIZE = Struct("<Q")

Bytes = npt.NDArray[np.uint8]

Sent = TypeVar("Sent")
Received = TypeVar("Received")
Message = TypeVar("Message")


class Channel(Generic[Sent, Received]):
    """An end of a channel, for one thread at a time. Owns the socket `end`.

    Raises OSError or EOFError if the other end is closed, and MemoryError if there is no memory for the arrays of a
    message. In that case the message is not sent, or a received message is lost, and the channel stays usable.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._num_sent = self._num_received = self._num_read_by_peer = 0
        self._own_memory: mmap | None = None
        self._peer_memory: mmap | None = None
        self._unread = bytearray()
        self._descriptors: list[int] = []

    def send(self, message: Sent) -> None:
        large: list[memoryview] = []
        data = _pickled(message, large if self._num_read_by_peer == self._num_sent else None)
        sizes = [part.nbytes for part in large]
        new = self._write(large, sum(sizes))
        header = HEADER.pack(len(data), len(sizes), new >= 0, self._num_received)
        try:
            self._transmit(b"".join([header, *map(SIZE.pack, sizes), data]), new)
        finally:
            if new >= 0:
                os.close(new)
        self._num_sent += 1
        if self._own_memory is not None and len(self._own_memory) > KEEP_BYTES:
            self._own_memory = None

    def recv(self) -> Received:
        length, num_large, is_new, num_read_by_peer = HEADER.unpack(self._take(HEADER.size))
        sizes = [SIZE.unpack(self._take(SIZE.size))[0] for _ in range(num_large)]
        data = self._take(length)
        self._num_received += 1
        self._num_read_by_peer = num_read_by_peer
        if is_new:
            self._peer_memory = None
        # The other end belongs to the same user: the code that starts or forks processes ensures that.
        received: Received = pickle.loads(data, buffers=self._read(sizes))  # noqa: S301
        return received

    def poll(self, seconds: float | None) -> bool:
        """Wait; True once there is something to receive or the other end is closed."""
        if self._unread:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(None if seconds is None else 1000 * seconds))

    def close(self) -> None:
        self._socket.close()
        self._own_memory = self._peer_memory = None
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _write(self, parts: Sequence[memoryview], num_bytes: int) -> int:
        """Copy `parts` into our memory. Return its descriptor if the other end does not have it yet, else -1."""
        new = -1
        if num_bytes > (0 if self._own_memory is None else len(self._own_memory)):
            self._own_memory, new = _memory(num_bytes + num_bytes // 4)
        offset = 0
        for part in parts:
            assert self._own_memory is not None
            _bytes(self._own_memory, part.nbytes, offset)[:] = np.frombuffer(part, np.uint8)
            offset += part.nbytes
        return new

    def _read(self, sizes: Sequence[int]) -> list[Bytes]:
        """Copy parts with these sizes in bytes out of the other end's memory."""
        if sizes and self._peer_memory is None:
            self._peer_memory = self._map()
        parts, offset = [], 0
        for size in sizes:
            assert self._peer_memory is not None
            parts.append(_bytes(self._peer_memory, size, offset).copy())
            offset += size
        if self._peer_memory is not None and len(self._peer_memory) > KEEP_BYTES:
            self._peer_memory = None
        return parts

    def _map(self) -> mmap:
        """Map the memory whose descriptor was received last, and close all received descriptors."""
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
                data, ancillary, _, _ = self._socket.recvmsg(64 * 1024, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
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
    """Pickle a message; large arrays are appended to `large` instead, if it is a list."""

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


def _reduced(values: npt.NDArray[Any]) -> Any:
    """Reduce a numeric array to a form that every version of NumPy reads; NumPy's own names its internal modules."""
    if values.dtype.kind not in NUMBERS:
        return values.__reduce__()
    return _array, (values.shape, values.dtype.str, pickle.PickleBuffer(np.ascontiguousarray(values).data))


def _array(shape: tuple[int, ...], dtype: str, buffer: Any) -> npt.NDArray[Any]:
    return np.ndarray(shape, dtype, buffer)


REDUCERS: dict[type, Callable[[Any], Any]] = {**dispatch_table, np.ndarray: _reduced}


def sent_by_fields(kind: type[Message]) -> type[Message]:
    """Decorate a dataclass with two or more fields that is sent often: it is pickled as its fields alone.

    The round trip of a short message takes two thirds of its time with pickle's own way for classes with slots.
    """
    values = attrgetter(*(each.name for each in fields(kind)))  # type: ignore[arg-type]
    REDUCERS[kind] = lambda message: (kind, values(message))
    return kind


def _memory(num_bytes: int) -> tuple[mmap, int]:
    """Return new memory and its descriptor. It is preallocated: a missing page would later kill the process."""
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
