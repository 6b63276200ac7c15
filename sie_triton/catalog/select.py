"""A name as a user types it → ModelConfig: a model file, a directory, or a hub id."""

import os
from collections.abc import Sequence
from pathlib import Path

from sie_triton.catalog.config import ModelConfig, triton_name
from sie_triton.catalog.load import load_directory, starter_set
from sie_triton.catalog.recognise import recognise
from sie_triton.errors import CatalogError, LoadError
from sie_triton.families import families
from sie_triton.weights.locate import SMALL_FILES, locate


def select(names: Sequence[str], models_dir: Path | None, *, allow_hub: bool) -> list[ModelConfig]:
    """The models to serve: those named, else all of `models_dir`, else the starter set.

    CatalogError says where a name was looked for, and which models cannot be served together.
    """
    own = load_directory(models_dir) if models_dir else []
    if not names and models_dir and not own:
        raise CatalogError(f"models_dir: {models_dir}: holds no model file (*.yaml, *.yml)")
    known = {model.sie_id: model for model in [*starter_set(), *own]}
    models = [known.get(name) or _unlisted(name, allow_hub=allow_hub) for name in names] if names else own
    return _distinct(models or starter_set())


def _distinct(models: Sequence[ModelConfig]) -> list[ModelConfig]:
    """Each once; CatalogError where two would have one name in Triton."""
    served: dict[str, ModelConfig] = {}
    for model in models:
        name = triton_name(model.sie_id)
        other = served.setdefault(name, model)
        if other.source != model.source:
            raise CatalogError(
                f"{other.source} and {model.source}: both would be served as {name}; "
                "give one another sie_id, in a model file with its weights_path if it is a directory"
            )
    return list(served.values())


def _unlisted(name: str, *, allow_hub: bool) -> ModelConfig:
    if os.path.isdir(path := os.path.expanduser(name)):
        directory = Path(path).resolve()
        return recognise(directory, directory.name, {"weights_path": str(directory)})
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise CatalogError(f"{name}: no model file has this sie_id, it is no directory, and no hub id (org/name)")
    try:
        directory = locate(f"hub://{name}", allow_hub=allow_hub, patterns=recognised_by())
    except LoadError as exc:
        raise CatalogError(f"{name}: no model file has this sie_id, and {exc}") from exc
    # What is served is what was looked at: the cache names a directory by the commit.
    return recognise(directory, name, {"hf_id": name, "hf_revision": directory.name})


def recognised_by() -> tuple[str, ...]:
    """Patterns of the files that families look at in a directory."""
    return (*SMALL_FILES, *(pattern for _, kind in families() for pattern in kind.files))
