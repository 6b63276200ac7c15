"""The message between two steps: the context and the arrays of one request, sealed, in one tensor.

preprocess → inference → postprocess

    seal | front: cost, end of the sealed part, size of the head | head | arrays of integers | arrays of floats

Each tensor between two steps costs about 27 µs in all processes, so there is one. The head is msgpack: the fields of
the context, then the name and shape of each array. The head and each array are padded to a multiple of ALIGNMENT.
The seal covers everything but the floats, of which any value is valid, so no step need check what the previous one has
sealed. Large tensors, such as images, pass beside the message without a copy; the head has their shapes.
"""

import os
import secrets
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from math import prod
from pathlib import Path
from struct import Struct
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np

from sie_triton.contract import VERBS, Model, Rows
from sie_triton.contract.tensors import LENGTHS, MESSAGE, NUMPY_DTYPES, Tensor, with_lengths
from sie_triton.errors import InputError
from sie_triton.pipeline.stages.checks import array_of
from sie_triton.pipeline.stages.context import Context
from sie_triton.pipeline.stages.request import Outputs, Request

KEY = "seal.key"
SEAL_BYTES = 8


class Seal:
    """A keyed hash of bytes and of the step that sends them. Immutable, so any thread may call its methods.

    The constructor raises OSError if the key's directory cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        self._key = shared_key(directory)

    def of(self, covered: bytes | memoryview, sender: bytes) -> bytes:
        """Return the seal, SEAL_BYTES long. `sender`: name of the step, up to 16 bytes."""
        return blake2b(covered, key=self._key, digest_size=SEAL_BYTES, person=sender).digest()

    def is_of(self, seal: bytes | memoryview, covered: bytes | memoryview, sender: bytes) -> bool:
        return secrets.compare_digest(seal, self.of(covered, sender))


def shared_key(directory: Path) -> bytes:
    """Return the key of all processes that use `directory`; the first of them creates it."""
    path = directory / KEY
    with suppress(FileExistsError), tempfile.NamedTemporaryFile(dir=directory) as file:  # 0600
        file.write(secrets.token_bytes(32))
        file.flush()
        if not path.exists():
            os.link(file.name, path)
    return path.read_bytes()


# The admission hook reads the cost, int32, behind the seal.
FRONT = Struct("<iQI")
HEAD = SEAL_BYTES + FRONT.size

ALIGNMENT = 8
PADDING = [bytes(size) for size in range(ALIGNMENT)]

# A client's id may contain them: JSON can.
LONE_SURROGATES = "surrogatepass"

Shapes = Sequence[tuple[str, Sequence[int]]]


class Messages:
    """Writes and reads the messages of the step `sender`, with `tensors` of the contract. Thread-safe."""

    def __init__(self, seal: Seal, sender: str, tensors: Iterable[Tensor]) -> None:
        self._seal, self._sender = seal, sender.encode()
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._dtypes = {name: np.dtype(NUMPY_DTYPES[tensor.dtype]) for name, tensor in self._tensors.items()}

    @classmethod
    def from_preprocess(cls, model: Model, seal: Seal) -> "Messages":
        """Return those with the features of requests."""
        return cls(seal, "preprocess", with_lengths(model.features))

    @classmethod
    def from_inference(cls, model: Model, seal: Seal) -> "Messages":
        """Return those with what the model has computed, and the lengths of the items."""
        forwarded = (tensor for task in model.spec.tasks for tensor in VERBS[task].forwarded(model))
        return cls(seal, "inference", [LENGTHS, *forwarded])

    def write(self, context: Context, rows: Rows, cost: int = 0) -> Outputs:
        """Return a step's outputs for the next step, in the contract's dtypes."""
        integers: Rows = {}
        floats: Rows = {}
        beside: Rows = {}
        for name, array in rows.items():
            dtype = self._dtypes[name]
            place = beside if self._tensors[name].is_large else floats if dtype.kind == "f" else integers
            place[name] = array.astype(dtype, copy=False)
        fields = (context.fields(), _shapes(integers | floats), _shapes(beside))
        head = msgpack.packb(fields, unicode_errors=LONE_SURROGATES)
        covered = _padded([head, *[array.tobytes() for array in integers.values()]])
        front = FRONT.pack(cost, HEAD + len(covered), len(head))
        seal = self._seal.of(front + covered, self._sender)
        message = b"".join((seal, front, covered, _padded([array.tobytes() for array in floats.values()])))
        return {MESSAGE.name: np.frombuffer(message, np.uint8), **beside}

    def read(self, request: Request, *, copy: bool) -> tuple[Context, Rows]:
        """Return context and arrays. Raise InputError unless the previous step has sealed them.

        Without `copy` the arrays are only valid as long as the request.
        """
        message = array_of(request, MESSAGE, copy=copy).data
        fields, inside, beside, at = self._opened(message)
        rows: Rows = {}
        for name, shape in inside:
            dtype, count = self._dtypes[name], prod(shape)
            end = at + count * dtype.itemsize
            if end > len(message):
                raise _foreign(MESSAGE)
            rows[name] = np.frombuffer(message, dtype, count, at).reshape(shape)
            at = end + -end % ALIGNMENT
        if at != len(message):
            raise _foreign(MESSAGE)
        for name, shape in beside:
            rows[name] = array_of(request, self._tensors[name], copy=copy)
            if list(rows[name].shape) != shape:
                raise _foreign(self._tensors[name])
        return Context.of(fields), rows

    def _opened(self, message: memoryview) -> tuple[list[Any], Shapes, Shapes, int]:
        """Return the fields of the context, the shapes of the arrays, and where the first one begins."""
        if len(message) < HEAD:
            raise _foreign(MESSAGE)
        _, end, size = FRONT.unpack_from(message, SEAL_BYTES)
        if not self._seal.is_of(message[:SEAL_BYTES], message[SEAL_BYTES:end], self._sender):
            raise _foreign(MESSAGE)
        head = message[HEAD : HEAD + size]
        fields, inside, beside = msgpack.unpackb(head, unicode_errors=LONE_SURROGATES)
        return fields, inside, beside, HEAD + size + -size % ALIGNMENT


def _foreign(tensor: Tensor) -> InputError:
    return InputError.at(tensor.name, "this step accepts only the output of the previous step; call the model itself")


def _shapes(rows: Rows) -> Shapes:
    return [(name, array.shape) for name, array in rows.items()]


def _padded(parts: Iterable[bytes]) -> bytes:
    pieces: list[bytes] = []
    for part in parts:
        pieces += (part, PADDING[-len(part) % ALIGNMENT])
    return b"".join(pieces)
