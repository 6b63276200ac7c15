"""The process that reads a model's pickles of tensors.

    python -m sie_triton.models.weights.unpickle (FILE DESCRIPTOR)...

It writes safetensors to each file's descriptor; for a file that it refuses, it writes a line of JSON to its standard
output. It opens all files, confines itself, and only then reads them: a hostile file can only waste the memory and time
that the process is allowed.
"""

import codecs
import errno
import json
import os
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from types import SimpleNamespace
from typing import IO, Any

import torch

from sie_triton.checkpoints.files import first_line, shortened
from sie_triton.errors import LoadError
from sie_triton.models.weights.limits import LIMITS, REFUSED
from sie_triton.system.processes import confined

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}

# Entry that transformers expects in the header.
METADATA = "__metadata__"


def main(files: Sequence[tuple[Path, int]]) -> None:
    """Convert pickles; `files` are their paths, and the descriptors to write the safetensors to. Ends the process."""
    try:
        opened = [(path, path.open("rb"), descriptor) for path, descriptor in files]
        sizes = [os.fstat(file.fileno()).st_size for _, file, _ in opened]
        _confine(sizes)
        for (path, file, descriptor), size in zip(opened, sizes, strict=True):
            with _explaining(path):
                _convert(path, file, size, descriptor)
    except LoadError as exc:
        print(json.dumps({"reason": exc.reason, "message": str(exc)}), flush=True)  # noqa: T201
        status = REFUSED
    else:
        status = 0
    # Normal interpreter shutdown would need more than a confined process is allowed.
    os._exit(status)


def _confine(sizes: Sequence[int]) -> None:
    torch.set_num_threads(1)
    # For advice that is not used here, PyTorch searches its message about a refused file, in the square of its length.
    torch.serialization.re = SimpleNamespace(match=re.match, search=lambda *_: None)  # type: ignore[attr-defined,assignment]
    _rehearse()
    confined.die_first()
    try:
        confined.confine(
            memory_bytes=2 * max(sizes) + LIMITS.spare_memory_bytes,
            file_bytes=_max_unpacked_bytes(max(sizes)),
            seconds=LIMITS.conversion_s(sum(sizes)),
        )
    except OSError as exc:
        message = f"pickles are not read, because this system cannot confine the process that would read them: {exc}"
        raise LoadError(f"{message}; save the model as safetensors elsewhere", "unsupported") from exc


def _rehearse() -> None:
    """Import everything needed to read files and to name tensors; a confined process can import nothing."""
    codecs.lookup("cp437")  # encoding of names in archives

    for is_zip in (True, False):
        file = BytesIO()
        torch.save({"x": torch.zeros(1)}, file, _use_new_zipfile_serialization=is_zip)
        file.seek(0)
        repr(torch.load(file, map_location="cpu", weights_only=True))


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except LoadError:
        raise
    except MemoryError as exc:
        raise LoadError(f"{path}: needs more memory than its size allows", "corrupt") from exc
    except UnpicklingError as exc:
        # PyTorch's own message explains how to run the code in the file.
        message = f"{path}: contains something other than tensors, or was not saved by PyTorch"
        raise LoadError(message, "unsupported") from exc
    except Exception as exc:  # the file is untrusted, and may cause any error
        reason = "disk full" if isinstance(exc, OSError) and exc.errno == errno.ENOSPC else "corrupt"
        said = f"{type(exc).__name__}: {first_line(exc)}"
        raise LoadError(f"{path}: cannot be converted to safetensors: {said}", reason) from exc


def _max_unpacked_bytes(size: int) -> int:
    # Names that share one tensor get a copy each.
    return 4 * size + 1_000_000


def _convert(path: Path, file: IO[bytes], size: int, descriptor: int) -> None:
    if zipfile.is_zipfile(file):
        _check_archive(path, file, size)
    file.seek(0)
    # weights_only allows tensors, numbers, texts and containers of them, and runs no code.
    loaded = torch.load(file, map_location="cpu", weights_only=True)
    _write(_checked(loaded, path, _max_unpacked_bytes(size)), descriptor)


def _check_archive(path: Path, file: IO[bytes], size: int) -> None:
    """Raise LoadError unless the archive is uncompressed and its entries fit its size, as PyTorch writes it."""
    entries = zipfile.ZipFile(file).infolist()
    if any(entry.compress_type for entry in entries) or sum(entry.file_size for entry in entries) > size:
        raise LoadError(f"{path}: is not an archive that PyTorch wrote: its contents exceed its size", "corrupt")


def _checked(loaded: Any, path: Path, most: int) -> Mapping[str, torch.Tensor]:
    """Return the tensors by name; LoadError if `loaded` contains anything else."""
    if not isinstance(loaded, dict) or not loaded:
        raise LoadError(f"{path}: must contain tensors by name (given {shortened(loaded)})", "unsupported")
    for name, value in loaded.items():
        if not isinstance(name, str) or name == METADATA:
            raise LoadError(f"{path}: {shortened(name)} is not a valid tensor name", "unsupported")
        if not isinstance(value, torch.Tensor):
            kind = type(value).__name__
            message = f"{path}: {shortened(name)} is not a tensor but {kind}; save only the model's state_dict"
            raise LoadError(message, "unsupported")
        dtype = str(value.dtype).removeprefix("torch.")
        if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu" or dtype not in DTYPES:
            message = f"{path}: {shortened(name)} is {dtype}, {value.layout}; allowed are dense {', '.join(DTYPES)}"
            raise LoadError(message, "unsupported")
    num_bytes = sum(value.numel() * value.element_size() for value in loaded.values())
    if num_bytes > most:
        raise LoadError(f"{path}: claims to hold {num_bytes} bytes of tensors, far more than its size", "corrupt")
    return {name: value.detach() for name, value in loaded.items()}


def _write(tensors: Mapping[str, torch.Tensor], descriptor: int) -> None:
    """Write the tensors as safetensors, one at a time, the widest numbers first so that all are aligned."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {METADATA: {"format": "pt"}}
    end = 0
    for name in order:
        tensor = tensors[name]
        start, end = end, end + tensor.numel() * tensor.element_size()
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    _write_all(descriptor, memoryview(len(text).to_bytes(8, "little") + text))
    for name in order:
        flat = tensors[name].contiguous().reshape(-1)
        if len(flat):
            _write_all(descriptor, flat.view(torch.uint8).numpy().data)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main([(Path(path), int(descriptor)) for path, descriptor in zip(sys.argv[1::2], sys.argv[2::2], strict=True)])
