"""Pickled weights: converted by a confined process, which must never run what is in them."""

import io
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import strategies as st
from safetensors import safe_open

from sie_triton.errors import LoadError
from sie_triton.models.weights import pickles, unpickle
from tests.fuzz.damage import EDITS, damaged, edited, one
from tests.fuzz.forks import forking
from tests.fuzz.quiet import one_thread
from tests.fuzz.target import Target, check_line
from tests.support.pickles import HOSTILE, Trap, legacy

MAX_BYTES = 60_000

# What a trap leaves behind if it is run.
SPRUNG = "sprung"

# Programs that no library writes: names of functions, calls, memory, and an end in the middle.
PROGRAMS = (
    b"cos\nsystem\n(S'touch sprung'\ntR.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch sprung\x85R.",
    b'c__builtin__\neval\n(S\'open("sprung","w")\'\ntR.',
    b"ctorch._utils\n_rebuild_tensor_v2\n(tR.",
    b"ccollections\nOrderedDict\n)R}(Vx\nK\x01ub.",
    b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
    b"(" * 5000 + b".",
    b"]" * 5000 + b"a" * 4999 + b".",
    b"I1\n" * 100 + b"0" * 200 + b".",
    b"h\x00.",
)


@contextmanager
def pickled(directory: Path) -> Iterator[Target]:
    files = saved(directory / "saved")
    zips = [file for file in files if zipfile.is_zipfile(io.BytesIO(file))]
    cases = st.one_of(
        damaged([*files, *PROGRAMS]),
        st.builds(with_edited_program, one(zips), EDITS),
        st.builds(with_program, one(zips), one(PROGRAMS)),
    )
    unpickle._rehearse()  # here for all forks
    with one_thread(), forking("sie_triton.models.weights.pickles", run_unpickle), patch.object(unpickle, "_rehearse"):
        yield Target(cases, lambda file: converted(directory, file), (LoadError,))


def run_unpickle(arguments: list[str]) -> None:
    """Do what `python -m sie_triton.models.weights.unpickle` does with its arguments."""
    pairs = zip(arguments[::2], arguments[1::2], strict=True)
    unpickle.main([(Path(path), int(number)) for path, number in pairs])


def saved(directory: Path) -> list[bytes]:
    """Return valid files of either form, and hostile ones."""
    directory.mkdir()
    shared = torch.arange(12, dtype=torch.float32)
    several = {
        "a.weight": torch.zeros(3, 2),
        "a.bias": torch.ones(3, dtype=torch.float16),
        "view": shared[2:8].reshape(2, 3).T,
        "whole": shared,
        "empty": torch.zeros(0, 4),
        "number": torch.tensor(5),
        "flags": torch.tensor([True, False]),
        "bf16": torch.zeros(2, dtype=torch.bfloat16),
    }
    path = directory / "file"
    makers = [lambda path: torch.save(several, path), lambda path: legacy(several, path)] * 4
    makers += [save for name, (save, _) in HOSTILE.items() if "bomb" not in name and "billion" not in name]
    made = []
    for make in makers:
        make(path)
        made.append(path.read_bytes())
    made += [pickle.dumps({"a": Trap(), "b": [1, {2}, (3,), b"4", 5.0]}, protocol) for protocol in range(6)]
    return [file for file in made if len(file) < MAX_BYTES]


def with_edited_program(archive: bytes, edits: Any) -> bytes:
    return _rewritten(archive, lambda program: edited(program, edits, PROGRAMS))


def with_program(archive: bytes, program: bytes) -> bytes:
    return _rewritten(archive, lambda _: program)


def _rewritten(archive: bytes, change: Any) -> bytes:
    """Return PyTorch's archive with another program in place of its own."""
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(target, "w") as written:
        for name in source.namelist():
            content = source.read(name)
            written.writestr(name, change(content) if name.endswith("data.pkl") else content)
    return target.getvalue()


def converted(directory: Path, file: bytes) -> None:
    """Convert a file, and read the result."""
    path, target = directory / "pytorch_model.bin", directory / "converted.safetensors"
    path.write_bytes(file)
    target.unlink(missing_ok=True)
    try:
        pickles._convert({path: target}, lambda: None)
    except LoadError as exc:
        check_line(exc, 1000)
        raise
    finally:
        assert not any((place / SPRUNG).exists() for place in (directory, Path.cwd()))
        assert not list(directory.glob(".tmp*"))
    with safe_open(target, "np") as tensors:
        assert tensors.keys()
        assert target.stat().st_size <= unpickle._max_unpacked_bytes(len(file)) + 100_000
