"""Frames of HTTP/2 as a client of gRPC sends them, also such that gRPC's own clients never send (RFC 9113)."""

import socket
import struct
from typing import NamedTuple

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4

# Numbers of settings.
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 3, 4

# Window of a stream and of a connection before any update, and size of a frame, in bytes.
WINDOW_BYTES, FRAME_BYTES = 65_535, 16_384


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def is_last(self) -> bool:
        """True if the server sends nothing more on the stream, or on the connection."""
        return self.kind in (RST_STREAM, GOAWAY) or (self.kind == HEADERS and bool(self.flags & END_STREAM))

    @property
    def settings(self) -> dict[int, int]:
        return dict(struct.iter_unpack(">HI", self.payload))


class Http2Client:
    """A connection to a gRPC server. It gives the server no more room for answers than each stream has at first."""

    def __init__(self, port: int, seconds: float = 30.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), seconds)
        self._received = b""
        self._num_streams = 0
        self._socket.sendall(PREFACE + _frame(SETTINGS, 0, 0))

    def __enter__(self) -> "Http2Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(self, path: bytes, **headers: bytes) -> int:
        """Begin a call without its message; return its stream."""
        stream = 1 + 2 * self._num_streams
        self._num_streams += 1
        fields = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"x", b"te": b"trailers"}
        fields |= {b"content-type": b"application/grpc"}
        fields |= {name.replace("_", "-").encode(): value for name, value in headers.items()}
        literals = (b"\0" + _text(name) + _text(value) for name, value in fields.items())
        self._send(HEADERS, END_HEADERS, stream, b"".join(literals))
        return stream

    def send(self, stream: int, data: bytes, *, ends: bool = False) -> None:
        """Send bytes of a message, whatever room the server gives."""
        pieces = [data[at : at + FRAME_BYTES] for at in range(0, len(data), FRAME_BYTES)] or [b""]
        for piece in pieces:
            self._send(DATA, END_STREAM if ends and piece is pieces[-1] else 0, stream, piece)

    def give_room(self, stream: int, num_bytes: int) -> None:
        """Let the server send so many more bytes."""
        for each in (0, stream):
            self._send(WINDOW_UPDATE, 0, each, num_bytes.to_bytes(4, "big"))

    def frame(self) -> Frame:
        """Return the next frame; EOFError if the server has closed the connection."""
        size = 9 + int.from_bytes(self._peek(9)[:3], "big")
        received, self._received = self._peek(size), self._received[size:]
        frame = Frame(received[3], received[4], int.from_bytes(received[5:9], "big"), received[9:])
        if frame.kind in (SETTINGS, PING) and not frame.flags & ACK:
            self._send(frame.kind, ACK, 0, frame.payload if frame.kind == PING else b"")
        return frame

    def end(self, stream: int) -> Frame:
        """Return the last frame of a call, or of the connection."""
        while not ((frame := self.frame()).is_last and frame.stream in (0, stream)):
            pass
        return frame

    def status(self, stream: int) -> bytes:
        """Return the last headers of a call, with status and text."""
        frame = self.end(stream)
        assert frame.kind == HEADERS, frame
        return frame.payload

    def is_closed(self) -> bool:
        """Return True once the server has closed the connection, False if it is open after the timeout."""
        try:
            while True:
                self.frame()
        except (EOFError, ConnectionError):
            return True
        except TimeoutError:
            return False

    def _peek(self, num_bytes: int) -> bytes:
        while len(self._received) < num_bytes:
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError("the server has closed the connection")
            self._received += data
        return self._received[:num_bytes]

    def _send(self, kind: int, flags: int, stream: int, payload: bytes = b"") -> None:
        self._socket.sendall(_frame(kind, flags, stream, payload))


def message(data: bytes, size: int | None = None) -> bytes:
    """Return a message of gRPC, or its beginning, if it says that it has another `size`."""
    return b"\0" + (len(data) if size is None else size).to_bytes(4, "big") + data


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _text(data: bytes) -> bytes:
    """Return a text of a header (RFC 7541)."""
    assert len(data) < 127
    return bytes([len(data)]) + data
