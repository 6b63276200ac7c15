"""The JSON files of a model, written by others: every complaint names the file, the key and what is allowed there.

Standard library only: render and preprocess read these without torch.
"""

import json
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from reprlib import Repr
from typing import Any

from sie_triton.errors import LoadError

# No real length, size or token id is larger.
MOST = 10_000_000

# What a model file says for weights that are only pickled.
TENSORS = "tensors"

MAX_PATH = 255
MAX_SAID = 300

# What was given, as an error shows it: a line of it, however much there is.
_SHORT = Repr()
_SHORT.maxlevel = 2
shortened = _SHORT.repr


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object; `where` leads to it: its file and the keys. null is as good as absent."""

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
        """`default` None: it must be there. 512.0 is 512, as some write it."""
        if not self.has(key) and default is not None:
            return default
        value = self.values.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < least or (most and value > most):
            upper = f" to {most}" if most else ""
            raise self._wrong(key, f"a whole number from {least}{upper}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values[key] if self.has(key) else default
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """`default` None: it must be there."""
        value = self.values[key] if self.has(key) else default
        if not isinstance(value, str):
            raise self._wrong(key, "a text")
        return value

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of texts; a single text is a list of one."""
        value = self.values[key] if self.has(key) else list(default)
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._wrong(key, "a list of texts")
        return tuple(value)

    def one_of(self, key: str, allowed: tuple[str, ...]) -> str:
        """The first of `allowed` where the file does not say."""
        value = self.text(key, allowed[0]) or allowed[0]
        if value not in allowed:
            message = f"{self.where}: {key} {shortened(value)} is unknown; supported are {', '.join(allowed)}"
            raise LoadError(message, "unsupported")
        return value

    def fields(self, key: str) -> "Fields":
        """The object under `key`, empty where there is none."""
        return Fields.of(f"{self.where}: {key}", self.values[key] if self.has(key) else {})

    def text_map(self, key: str) -> dict[str, str]:
        """The object under `key`, all of whose values are texts."""
        found = self.fields(key)
        return {name: found.text(name) for name in found.values if found.has(name)}

    def _wrong(self, key: str, allowed: str) -> LoadError:
        given = f"given {shortened(self.values[key])}" if key in self.values else "missing"
        return LoadError(f"{self.where}: {key}: must be {allowed} ({given})", "corrupt")


def read_fields(path: Path, *, required: bool = True) -> Fields:
    """The object in a file; where it is missing, an empty one if it is not `required`."""
    return Fields.of(str(path), read_json(path, default=None if required else {}))


def read_json(path: Path, default: Any = None) -> Any:
    """Its content, or `default` where there is no such file; LoadError names what is missing or cannot be read."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise LoadError(f"{path}: is not a file", "corrupt")
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as exc:
        if default is not None and not path.is_symlink():
            return default
        raise LoadError(f"{path.name} is missing in {path.parent}", "not found") from exc
    except RecursionError as exc:
        raise LoadError(f"{path}: cannot be read: nested too deeply", "corrupt") from exc
    except (OSError, ValueError) as exc:
        raise LoadError(f"{path}: cannot be read: {first_line(exc)}", "corrupt") from exc


def has_file(path: Path) -> bool:
    """True if it is there, whether or not it can be read; what cannot even be looked for is not."""
    try:
        return path.exists()
    except OSError:
        return False


def inside(directory: Path, relative: str, where: str) -> Path:
    """`relative`, as the file `where` gives it, below `directory`; LoadError if it leads elsewhere."""
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or not relative.isprintable() or len(relative) > MAX_PATH:
        allowed = f"a path inside the model's directory, of at most {MAX_PATH} characters"
        raise LoadError(f"{where}: must be {allowed} (given {shortened(relative)})", "unsupported")
    return directory / path


def only_pickled(where: str, names: Sequence[str]) -> LoadError:
    """The refusal of a model in `where` whose weights in the files `names` are nowhere but there."""
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return LoadError(
        f"{where}: {names[0]}{others}: weights only as pickles, which can carry code; save the model as safetensors, "
        f"or write allow_pickle: {TENSORS} into its model file, to have tensors, and nothing else, converted to "
        "safetensors once, in a process without network",
        "unsupported",
    )


def first_line(error: BaseException) -> str:
    """What a library says, without what it says after that."""
    lines = str(error).splitlines()
    return lines[0][:MAX_SAID] if lines else type(error).__name__
