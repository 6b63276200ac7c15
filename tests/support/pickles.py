"""Malicious and damaged pickles."""

import io
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch

Save = Callable[[Path], object]


class Trap:
    """Object that makes a file in the working directory when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch sprung",)


def legacy(value: object, path: Path) -> None:
    torch.save(value, path, _use_new_zipfile_serialization=False)


def huge(path: Path) -> None:
    """Legacy file of three numbers whose header claims 2^31 - 1."""
    file = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, file, _use_new_zipfile_serialization=False)
    path.write_bytes(file.getvalue().replace(b"K\x03Nt", b"J\xff\xff\xff\x7fNt"))


def deflated(path: Path) -> None:
    """PyTorch archive whose entries grow a thousandfold when they are read."""
    plain = io.BytesIO()
    torch.save({"a": torch.zeros(50_000_000)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))


def cut_off(path: Path) -> None:
    torch.save({"a": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:2000])


ELSE = "contains something other than tensors"
DENSE = "allowed are dense"

# By what they are: how to save them, and what is said of them.
HOSTILE: dict[str, tuple[Save, str]] = {
    "code": (lambda path: torch.save({"a": Trap()}, path), ELSE),
    "code in a legacy file": (lambda path: legacy({"a": Trap()}, path), ELSE),
    "code in a plain pickle": (lambda path: path.write_bytes(pickle.dumps(Trap())), ELSE),
    "a name of a million letters": (lambda path: path.write_bytes(b"c" + b"a" * 10**6 + b"\nb\n."), ELSE),
    "an entry that is a number": (
        lambda path: torch.save({"model": torch.zeros(1), "epoch": 3}, path),
        "'epoch' is not a tensor but int; save only the model's state_dict",
    ),
    "tensors in an entry": (lambda path: torch.save({"model": {"a": torch.zeros(1)}}, path), "is not a tensor but"),
    "a list": (lambda path: torch.save([torch.zeros(1)], path), "must contain tensors by name"),
    "nothing": (lambda path: torch.save({}, path), "must contain tensors by name"),
    "numbers for names": (lambda path: torch.save({1: torch.zeros(1)}, path), "1 is not a valid tensor name"),
    "the header's own name": (lambda path: torch.save({"__metadata__": torch.zeros(1)}, path), "is not a valid tensor"),
    "complex numbers": (
        lambda path: torch.save({"a": torch.zeros(1, dtype=torch.complex64)}, path),
        "allowed are dense",
    ),
    "a sparse tensor": (lambda path: torch.save({"a": torch.eye(3).to_sparse()}, path), DENSE),
    "one number seen a billion times": (
        lambda path: torch.save({"a": torch.zeros(1).expand(10**9)}, path),
        "far more than its size",
    ),
    "two billion numbers that are not there": (huge, "can't allocate memory"),
    "a bomb of an archive": (deflated, "its contents exceed its size"),
    "half of it": (cut_off, "cannot be converted"),
    "text": (lambda path: path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"), ELSE),
    "no byte": (lambda path: path.write_bytes(b""), "cannot be converted"),
}
