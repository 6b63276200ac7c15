"""Reader of the JSON files of a model. Error messages name the file, the key and the allowed values."""

import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from reprlib import Repr
from typing import Any, BinaryIO, TypeGuard

from sie_triton.checkpoints.limits import LIMITS
from sie_triton.errors import LoadError

# Larger than any real length, size or token id.
MOST = 10_000_000


# Value of `allow_pickle` in a model file that permits converting pickled weights.
TENSORS = "tensors"


# Shows a given value in error messages, cut to one line.
_SHORT = Repr()
_SHORT.maxlevel = 2
shortened = _SHORT.repr


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object. `where` names its file and keys in messages. null counts as missing."""

    where: str
    values: Mapping[str, Any]

    @classmethod
    def of(cls, where: str, value: Any) -> "Fields":
        if not isinstance(value, dict):
            raise LoadError(f"{where}: must be an object (given {shortened(value)})", "corrupt")
        return cls(where, value)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def integer(self, key: str, default: int | None = None, *, least: int = 0, most: int | None = MOST) -> int:
        """Return the integer under `key`, which is required without a `default`. 512.0 counts as 512."""
        if not self.has(key) and default is not None:
            return default
        value = self.values.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < least or (most and value > most):
            upper = f" to {most}" if most else ""
            raise self._wrong(key, f"a whole number from {least}{upper}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return the number under `key`; without a `default`, the key is required."""
        value = self.values[key] if self.has(key) else default
        if not is_number(value):
            raise self._wrong(key, f"a number from -{LIMITS.max_number:g} to {LIMITS.max_number:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.values[key] if self.has(key) else default
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """Return the string under `key`; without a `default`, the key is required."""
        value = self.values[key] if self.has(key) else default
        if not isinstance(value, str):
            raise self._wrong(key, "a string")
        return value

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the list of strings under `key`; a single string counts as a list of one."""
        value = self.values[key] if self.has(key) else list(default)
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._wrong(key, "a list of strings")
        return tuple(value)

    def integers(self, key: str, *, most: int) -> tuple[int, ...]:
        """Return the list of whole numbers under `key`, at most `most` of them; empty if the key is missing."""
        value = self.values[key] if self.has(key) else []
        if not isinstance(value, list) or len(value) > most or not all(type(each) is int for each in value):
            raise self._wrong(key, f"a list of at most {most} whole numbers")
        return tuple(value)

    def one_of(self, key: str, allowed: tuple[str, ...]) -> str:
        """Return the value under `key`, one of `allowed`; the first of them if the key is missing."""
        value = self.text(key, allowed[0]) or allowed[0]
        if value not in allowed:
            raise self.unserved(f"{key} {shortened(value)} is unknown; supported are {', '.join(allowed)}")
        return value

    def fields(self, key: str) -> "Fields":
        """Return the object under `key`; empty if the key is missing."""
        return Fields.of(f"{self.where}: {key}", self.values[key] if self.has(key) else {})

    def text_map(self, key: str) -> dict[str, str]:
        """Return the object under `key`, whose values must all be strings."""
        found = self.fields(key)
        return {name: found.text(name) for name in found.values if found.has(name)}

    def unserved(self, problem: str) -> LoadError:
        """Return the error for contents that cannot be served; `problem` begins with a key."""
        return LoadError(f"{self.where}: {problem}", "unsupported")

    def corrupt(self, problem: str) -> LoadError:
        """Return the error for contents that no library writes; `problem` begins with a key."""
        return LoadError(f"{self.where}: {problem}", "corrupt")

    def _wrong(self, key: str, allowed: str) -> LoadError:
        given = f"given {shortened(self.values[key])}" if key in self.values else "missing"
        return self.corrupt(f"{key}: must be {allowed} ({given})")


def is_number(value: Any) -> TypeGuard[float]:
    """Return True for a number of a size that settings of models have."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LIMITS.max_number


def read_fields(path: Path, *, required: bool = True, most: int = LIMITS.max_json_bytes) -> Fields:
    """Read the object in a file of `most` bytes at most. A missing file is an error if `required`, else empty."""
    return Fields.of(str(path), read_json(path, default=None if required else {}, most=most))


def read_json(path: Path, default: Any = None, *, most: int = LIMITS.max_json_bytes) -> Any:
    """Read a JSON file of at most `most` bytes; `default` if it does not exist. LoadError if missing or unreadable."""
    try:
        return json.loads(read_bytes(path, most).decode())
    except (FileNotFoundError, NotADirectoryError) as exc:
        if default is not None and not path.is_symlink():
            return default
        raise LoadError(f"{path.name} is missing in {path.parent}", "not found") from exc
    except RecursionError as exc:
        raise LoadError(f"{path}: cannot be read: nested too deeply", "corrupt") from exc
    except (OSError, ValueError) as exc:
        raise LoadError(f"{path}: cannot be read: {first_line(exc)}", "corrupt") from exc


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a file. Raise LoadError if it has more than `most` bytes, or is a pipe or a device."""
    with opened(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise LoadError(f"{path}: may have at most {most} bytes", "unsupported")
    return content


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading. Raise LoadError if it is a pipe, which could block, or a device, which may never end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise LoadError(f"{path}: is not a regular file", "corrupt")
        yield file


def has_file(path: Path) -> bool:
    """Return True if the path exists, readable or not; False if looking for it fails."""
    try:
        return path.exists()
    except OSError:
        return False


def inside(directory: Path, relative: str, where: str) -> Path:
    """Return the path of `relative`, which the file `where` names, below `directory`; LoadError if it leads outside."""
    path = PurePosixPath(relative)
    if (
        path.is_absolute()
        or ".." in path.parts
        or not relative.isprintable()
        or len(relative.encode()) > LIMITS.max_path_bytes
    ):
        allowed = f"a path inside the model's directory, of at most {LIMITS.max_path_bytes} bytes"
        raise LoadError(f"{where}: must be {allowed} (given {shortened(relative)})", "unsupported")
    return directory / path


def only_pickled(where: str, names: Sequence[str]) -> LoadError:
    """Return the error for a model in `where` whose weights, the files `names`, are only pickles."""
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return LoadError(
        f"{where}: {names[0]}{others}: weights only as pickles, which can carry code; save the model as safetensors, "
        f"or write allow_pickle: {TENSORS} into its model file, to have the tensors, and nothing else, converted to "
        "safetensors once, in a process without network",
        "unsupported",
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, shortened; the error's class if it has no message."""
    lines = str(error).splitlines()
    return lines[0][: LIMITS.max_message_characters] if lines else type(error).__name__
