"""What a launcher serves, and from which model files: `serving.json` in its data directory.

    serve → serving.json → render/refresh.py → serving.json → controller

Its directory `models` holds the model files that were added to the running server; they are served after a restart too.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

FILE = "serving.json"

SUFFIXES = (".yaml", ".yml")

# Why a change is refused: the model file is wrong, another is served under its name, there is no such model.
WRONG, CONFLICT, UNKNOWN = "wrong", "conflict", "unknown"


@dataclass(frozen=True)
class Served:
    """`source` is a model file, or the directory that a model was recognised in; `changed_at` as in RFC 3339.

    `loras` are the LoRA adapters of the model file, name → where; None: the model takes none.
    """

    source: str
    changed_at: str
    loras: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Serving:
    """`names` are what `serve` was given, read from the working directory `cwd`; `settings` those that it resolved,
    without any that is secret.

    `models` and `problems` are what the last look at the model files found: model → source, source → what is wrong.
    `removed` are models that somebody took out of service until the next start; `edition` is the last there was.
    """

    names: tuple[str, ...]
    settings: Mapping[str, Any]
    cwd: str
    models: Mapping[str, Served] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()
    edition: int = 0

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
        """Files of the LoRA adapters that were added to the running server."""
        return self.data_dir / "loras"

    @property
    def models_dir(self) -> Path | None:
        """The user's own."""
        given = self.settings.get("models_dir")
        return Path(given) if given else None

    @property
    def named_files(self) -> list[Path]:
        """The model files among `names`, as absolute paths."""
        return [Path(self.cwd, os.path.expanduser(name)) for name in self.names if is_model_file(name)]

    def was_added(self, source: str) -> bool:
        """To the running server."""
        return Path(file_of(source)).parent == self.added_dir

    def updated(self, **changes: Any) -> "Serving":
        return replace(self, **changes)

    def write(self) -> None:
        """Replace the file; it is readable by this user alone."""
        path = self.data_dir / FILE
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.touch(mode=0o600)
        fresh.write_text(json.dumps(asdict(self), indent=1))
        fresh.replace(path)


def read_serving(data_dir: Path) -> Serving | None:
    """None where no launcher of this version serves from `data_dir`."""
    with suppress(OSError, ValueError, TypeError):
        raw = json.loads((data_dir / FILE).read_text())
        models = {name: Served(**each) for name, each in raw["models"].items()}
        return Serving(**{**raw, "models": models, "names": tuple(raw["names"]), "removed": tuple(raw["removed"])})
    return None


def repository_of(data_dir: Path) -> Path:
    """Triton's model repository there."""
    return data_dir / "model_repository"


def fault_lines(problems: Mapping[str, str], sources: Iterable[str]) -> Iterator[str]:
    """Yield a line for each complaint; models of `sources` are served, so an earlier version stays in service.

    >>> list(fault_lines({"/a/b.yaml": "/a/b.yaml: dim: must be 64"}, ["/a/b.yaml"]))
    ['not changed: /a/b.yaml: dim: must be 64']
    """
    kept = set(map(file_of, sources))
    for source, problem in problems.items():
        before = "not changed" if file_of(source) in kept else "not served"
        for line in problem.splitlines():
            yield f"{before}: {line if is_model_file(source) else f'{source}: {line}'}"


def model_files(directory: Path) -> list[Path]:
    """OSError where there is no such directory."""
    return sorted(path for path in directory.iterdir() if path.suffix in SUFFIXES and not path.name.startswith("."))


def is_model_file(source: str) -> bool:
    """Else a model was recognised in a directory.

    >>> is_model_file("/a/b.yaml"), is_model_file("/a/b.yaml: profiles.c"), is_model_file("/a/b")
    (True, True, False)
    """
    return file_of(source).endswith(SUFFIXES)


def file_of(source: str) -> str:
    """Without the profile that the model is.

    >>> file_of("/a/b.yaml: profiles.c")
    '/a/b.yaml'
    """
    return source.partition(": profiles.")[0]
