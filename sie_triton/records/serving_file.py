"""Record of what a launcher serves and from which model files: `serving.json` in its data directory.

    serve → serving.json → pipeline/render/refresh.py → serving.json → controller

The directory `models` beside it holds the model files that were added to the running server; a restarted server serves
them too.
"""

import fcntl
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from sie_triton.system.host.files import write_atomically

FILE = "serving.json"

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Served:
    """A served model.

    `source` is its model file, or the directory in which it was recognised. `changed_at` is in RFC 3339 format. `loras`
    maps names of the model file's LoRA adapters to their locations; None if the model takes none.
    """

    source: str
    changed_at: str
    loras: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Serving:
    """Content of serving.json.

    `names` are the arguments of `serve`; relative paths among them start at the working directory `cwd`. `settings` are
    the resolved settings without secrets. `models` (by name) and `problems` (source → error message) are the result of
    the last scan of the model files. `mentioned` are models that are served because a request named them, and `removed`
    models taken out of service, both until the next start. `revision` is the number of the latest revision.
    """

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    cwd: str
    models: Mapping[str, Served] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    mentioned: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    revision: int = 0

    @property
    def data_dir(self) -> Path:
        return Path(self.settings["data_dir"])

    @property
    def repository(self) -> Path:
        return repository_of(self.data_dir)

    @property
    def added_dir(self) -> Path:
        return self.data_dir / "models"

    @property
    def loras_dir(self) -> Path:
        """Directory of the files that list the LoRA adapters added to the running server."""
        return self.data_dir / "loras"

    @property
    def models_dir(self) -> Path | None:
        """Directory of the user's own model files; None if not set."""
        given = self.settings.get("models_dir")
        return Path(given) if given else None

    @property
    def own_files(self) -> Sequence[Path] | OSError | None:
        """Model files in models_dir: None without one, the error if it cannot be read."""
        try:
            return model_files(self.models_dir) if self.models_dir else None
        except OSError as exc:
            return exc

    @property
    def named_files(self) -> list[Path]:
        """Model files among `names`, as absolute paths."""
        return [Path(self.cwd, os.path.expanduser(name)) for name in self.names if is_model_file(name)]

    def was_added(self, source: str) -> bool:
        """Return True if `source` was added to the running server."""
        return Path(file_of(source)).parent == self.added_dir

    def updated(self, **changes: Any) -> "Serving":
        return replace(self, **changes)

    def write(self) -> None:
        """Replace the file atomically; only this user can read it."""
        write_atomically(self.data_dir / FILE, json.dumps(asdict(self), indent=1), mode=0o600)


def read_serving(data_dir: Path) -> Serving | None:
    """Return the record in `data_dir`; None if no launcher of this version serves from there."""
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raw = json.loads((data_dir / FILE).read_text())
        models = {name: Served(**each) for name, each in raw["models"].items()}
        tuples = {name: tuple(raw[name]) for name in ("names", "mentioned", "removed")}
        return Serving(**{**raw, **tuples, "models": models})
    return None


def repository_of(data_dir: Path) -> Path:
    """Return the path of Triton's model repository in `data_dir`."""
    return data_dir / "model_repository"


def fault_lines(problems: Mapping[str, str], sources: Iterable[str]) -> Iterator[str]:
    """Yield a line for each problem. If a source in `sources` has one, its previous version stays in service.

    >>> list(fault_lines({"/a/b.yaml": "/a/b.yaml: dim: must be 64"}, ["/a/b.yaml"]))
    ['not changed: /a/b.yaml: dim: must be 64']
    """
    kept = set(map(file_of, sources))
    for source, problem in problems.items():
        before = "not changed" if file_of(source) in kept else "not served"
        for line in problem.splitlines():
            yield f"{before}: {line if is_model_file(source) else f'{source}: {line}'}"


def model_files(directory: Path) -> list[Path]:
    """Return the model files in `directory`, sorted, without hidden files; OSError if the directory cannot be read."""
    return sorted(directory / name for name in names_of_model_files(directory))


def names_of_model_files(directory: Path) -> Iterator[str]:
    """Yield the names of the model files in `directory`, in any order; OSError if the directory cannot be read."""
    return (name for name in os.listdir(directory) if name.endswith(SUFFIXES) and not name.startswith("."))


def is_model_file(source: str) -> bool:
    """Return True for a model file, False for a directory in which a model was recognised.

    >>> is_model_file("/a/b.yaml"), is_model_file("/a/b.yaml: profiles.c"), is_model_file("/a/b")
    (True, True, False)
    """
    return file_of(source).endswith(SUFFIXES)


def file_of(source: str) -> str:
    """Return `source` without the name of a profile.

    >>> file_of("/a/b.yaml: profiles.c")
    '/a/b.yaml'
    """
    return source.partition(": profiles.")[0]


LOCK = "serving.lock"


@contextmanager
def locked(data_dir: Path, wait_s: float = math.inf) -> Iterator[bool]:
    """Hold the lock of the repository of a data directory; yield False if others still hold it after `wait_s`."""
    with (data_dir / LOCK).open("a") as handle:
        ends_at = monotonic() + wait_s
        while not (is_ours := _took(handle.fileno())) and monotonic() < ends_at:
            sleep(0.05)
        yield is_ours


def _took(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
