"""The message between two steps: the context and the arrays of one request, sealed, in one tensor.

preprocess → inference → postprocess

    seal | front: cost, end of the sealed part, size of the head | head | arrays of integers | arrays of floats

Each tensor between two steps costs about 27 µs in all processes, so there is one. The head is msgpack: the fields of
the context, then the name and shape of each array. The head and each array are padded to a multiple of ALIGNMENT.
The seal covers everything but the floats, of which any value is valid, so no step need check what the previous one has
sealed. Large tensors, such as images, are separate outputs, without a copy; the head has their shapes.
"""

import os
import secrets
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from secrets import compare_digest
from struct import Struct

import msgpack  # type: ignore[import-untyped]
import numpy as np

from sie_triton.contract import VERBS, Model, Rows
from sie_triton.contract.arrays import Array
from sie_triton.contract.tensors import LENGTHS, MESSAGE, NUMPY_DTYPES, Tensor, with_lengths
from sie_triton.errors import InputError
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

    def keyed(self, sender: bytes) -> blake2b:
        """Return a hash object for the messages of a step, without data. `sender`: name of the step, up to 16 bytes."""
        return blake2b(key=self._key, digest_size=SEAL_BYTES, person=sender)


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


class Messages:
    """Writes and reads the messages of the step `sender`, with `tensors` of the contract. Thread-safe."""

    def __init__(self, seal: Seal, sender: str, tensors: Iterable[Tensor]) -> None:
        self._keyed = seal.keyed(sender.encode())
        # Its buffer is not allocated for each message; threads may share it, because `pack` keeps the interpreter lock.
        self._packer = msgpack.Packer(unicode_errors=LONE_SURROGATES)
        self._tensors = {tensor.name: tensor for tensor in tensors}
        dtypes = {name: np.dtype(NUMPY_DTYPES[tensor.dtype]) for name, tensor in self._tensors.items()}
        # Integers before floats.
        self._dtypes = dict(sorted(dtypes.items(), key=lambda each: each[1].kind == "f"))

    @classmethod
    def from_preprocess(cls, model: Model, seal: Seal) -> "Messages":
        """Return those with the features of requests."""
        return cls(seal, "preprocess", with_lengths(model.features))

    @classmethod
    def from_inference(cls, model: Model, seal: Seal) -> "Messages":
        """Return those with the computed tensors, and the lengths of the items."""
        forwarded = (tensor for task in model.spec.tasks for tensor in VERBS[task].forwarded(model))
        return cls(seal, "inference", [LENGTHS, *forwarded])

    def write(self, context: Context, rows: Rows, cost: int = 0) -> Outputs:
        """Return a step's outputs for the next step, in the contract's dtypes."""
        inside: list[tuple[str, Sequence[int]]] = []
        integers: list[memoryview | bytes] = []
        floats: list[memoryview | bytes] = []
        beside: Rows = {}
        for name, dtype in self._dtypes.items():
            if name not in rows:
                continue
            array = np.ascontiguousarray(rows[name], dtype)
            if self._tensors[name].is_large:
                beside[name] = array
            else:
                inside.append((name, array.shape))
                packed = floats if dtype.kind == "f" else integers
                packed += (array.data, PADDING[-array.nbytes % ALIGNMENT])
        head = self._packer.pack((context.fields(), inside, [(name, array.shape) for name, array in beside.items()]))
        covered = b"".join((head, PADDING[-len(head) % ALIGNMENT], *integers))
        front = FRONT.pack(cost, HEAD + len(covered), len(head))
        message = b"".join((self._sealed(front, covered), front, covered, *floats))
        return {MESSAGE.name: np.frombuffer(message, np.uint8), **beside}

    def read(self, request: Request, *, copy: bool) -> tuple[Context, Rows]:
        """Return context and arrays. Raise InputError unless the previous step has sealed them.

        Without `copy` the arrays are only valid as long as the request.
        """
        message = array_of(request, MESSAGE, copy=copy)
        data = message.data
        if len(message) < HEAD:
            raise _foreign(MESSAGE)
        _, end, size = FRONT.unpack_from(data, SEAL_BYTES)
        if not compare_digest(data[:SEAL_BYTES], self._sealed(data[SEAL_BYTES:end])):
            raise _foreign(MESSAGE)
        fields, inside, beside = msgpack.unpackb(data[HEAD : HEAD + size], unicode_errors=LONE_SURROGATES)
        rows: Rows = {}
        at = HEAD + size + -size % ALIGNMENT
        try:
            for name, shape in inside:
                array = rows[name] = np.ndarray(shape, self._dtypes[name], data, at)
                at += array.nbytes + -array.nbytes % ALIGNMENT
        except (TypeError, ValueError) as exc:  # nothing seals the floats: there are fewer
            raise _foreign(MESSAGE) from exc
        if at != len(message):
            raise _foreign(MESSAGE)
        for name, shape in beside:
            rows[name] = array_of(request, self._tensors[name], copy=copy)
            if list(rows[name].shape) != shape:
                raise _foreign(self._tensors[name])
        return Context.of(fields), rows

    def _sealed(self, *covered: bytes | memoryview) -> bytes:
        seal = self._keyed.copy()
        for each in covered:
            seal.update(each)
        return seal.digest()


def array_of(request: Request, tensor: Tensor, *, copy: bool = True) -> Array:
    """Return an input without its batch dimension, in its declared dtype. Raise InputError for a wrong shape.

    With `copy` False the array is only valid as long as the request.
    """
    array = request.tensor(tensor.name)
    if array is None:
        raise InputError.at(tensor.name, "missing; it is a required input")
    if array.ndim != 1 + len(tensor.dims) or array.shape[0] != 1:
        dims = ", ".join("k" if dim < 0 else str(dim) for dim in tensor.dims)
        raise InputError.at(tensor.name, f"has shape {list(array.shape)}; send [1, {dims}], one request per batch row")
    found: Array = array[0].astype(NUMPY_DTYPES[tensor.dtype], copy=copy)
    return found


def _foreign(tensor: Tensor) -> InputError:
    return InputError.at(tensor.name, "this step accepts only the output of the previous step; call the model itself")
