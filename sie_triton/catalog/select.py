"""A name as a user types it → ModelConfig: a model file, a directory, or a hub id."""

from collections.abc import Sequence
from pathlib import Path

from sie_triton.catalog.config import ModelConfig
from sie_triton.catalog.load import load_file, starter_set
from sie_triton.catalog.recognise import recognise
from sie_triton.errors import CatalogError, LoadError
from sie_triton.weights.locate import CATALOG_FILES, locate


def select(names: Sequence[str], models_dir: Path | None, *, allow_hub: bool) -> list[ModelConfig]:
    """The models to serve: those named, else all of `models_dir`, else the starter set.

    CatalogError says where a name was looked for.
    """
    own = [load_file(path) for path in sorted(models_dir.glob("*.yaml"))] if models_dir else []
    known = {model.sie_id: model for model in [*starter_set(), *own]}
    if not names:
        return own or starter_set()
    return [known.get(name) or _unlisted(name, allow_hub=allow_hub) for name in dict.fromkeys(names)]


def _unlisted(name: str, *, allow_hub: bool) -> ModelConfig:
    path = Path(name).expanduser()
    if path.is_dir():
        return recognise(path, path.resolve().name, {"weights_path": str(path.resolve())})
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise CatalogError(f"{name}: no model file has this sie_id, it is no directory, and no hub id (org/name)")
    try:
        directory = locate(f"hub://{name}", allow_hub=allow_hub, patterns=CATALOG_FILES)
    except LoadError as exc:
        raise CatalogError(f"{name}: no model file has this sie_id, and {exc}") from exc
    return recognise(directory, name, {"hf_id": name})
