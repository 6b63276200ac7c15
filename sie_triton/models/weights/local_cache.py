"""The local cache of weights, in huggingface_hub's layout: its location, and the records of its commits."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from sie_triton.checkpoints.files import read_json
from sie_triton.errors import LoadError
from sie_triton.system.host.files import write_atomically


def listing(directory: Path) -> list[str]:
    """Return all files below `directory`, relative to it, except those in hidden directories."""
    found = []
    for root, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if not name.startswith(".")]
        relative = Path(root).relative_to(directory)
        found += [str(PurePosixPath(relative / name)) for name in files]
    return found


# Directory of our records in a repository's directory; huggingface_hub reads only refs, snapshots and blobs.
OURS = ".sie-triton"

WEIGHTS = (".safetensors", ".bin", ".pt", ".onnx")
INDEX = ".index.json"


def hub_cache() -> Path:
    from huggingface_hub import constants

    return Path(os.path.expanduser(constants.HF_HUB_CACHE))


def use_local_cache(directory: Path | None) -> None:
    """Make `directory` the cache of huggingface_hub in this process and in those that it starts; None: leave it."""
    if directory is None:
        return
    from huggingface_hub import constants

    path = os.path.abspath(os.path.expanduser(directory))
    os.environ["HF_HUB_CACHE"] = constants.HF_HUB_CACHE = path


def home_of(cache: Path, repo: str) -> Path:
    """Return the directory of a repository in the cache."""
    return cache / f"models--{repo.replace('/', '--')}"


def repo_of(home: Path) -> str:
    """
    >>> repo_of(home_of(Path("/cache"), "org/name"))
    'org/name'
    """
    return home.name.removeprefix("models--").replace("--", "/")


def keep_names(home: Path, commit: str, names: Sequence[str]) -> None:
    """Record the names of all files of a commit, as the hub lists them; OSError if the cache is read-only."""
    path = home / OURS / f"{commit}.files"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(names))


def known_names(home: Path, commit: str) -> tuple[str, ...]:
    """Return the names that `keep_names` has recorded; empty if there is no record."""
    with suppress(OSError, ValueError, RecursionError):
        names = json.loads((home / OURS / f"{commit}.files").read_text())
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(names)
    return ()


def is_complete(snapshot: Path) -> bool:
    """Return whether a snapshot that another program has fetched looks complete.

    It has a file of weights, every file that an index of shards names, and files in every directory of modules.json.
    """
    if not snapshot.is_dir():
        return False
    names = set(listing(snapshot))
    present = {name for name in names if (snapshot / name).exists()}
    if names != present or not any(name.endswith(WEIGHTS) for name in present):
        return False
    try:
        shards = {
            str(Path(name).parent / each)
            for name in present
            if name.endswith(INDEX)
            for each in read_json(snapshot / name)["weight_map"].values()
        }
        modules = _module_directories(snapshot / "modules.json") if "modules.json" in present else set()
    except (LoadError, KeyError, TypeError, AttributeError):
        return False
    return shards <= present and all(any(name.startswith(f"{module}/") for name in present) for module in modules)


def _module_directories(path: Path) -> set[str]:
    """Directories of modules with files; a module such as Normalize may have none."""
    modules = read_json(path)
    return {each["path"] for each in modules if each.get("path") and not each["type"].endswith("Normalize")}
