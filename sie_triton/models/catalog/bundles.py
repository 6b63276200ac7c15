"""Bundles: sets of models by name, of which SIE_BUNDLE chooses one to serve.

bundles/NAME.yaml in models_dir → names of models → the model filter
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from sie_triton.checkpoints.files import read_bytes
from sie_triton.errors import CatalogError
from sie_triton.models.catalog.load import MAX_BYTES, load_directory, parsed
from sie_triton.models.catalog.select import find_known

DIRECTORY = "bundles"

# Bundle of a server whose settings name none. Without a file it has all models.
DEFAULT = "default"


class Bundle(BaseModel):
    """A bundle file: `models` by name, and those of models_dir that are served by one of `adapters`.

    The other keys are those of SIE's bundles and have no effect: a model file names the environment of its worker.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    models: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    name: Any = None
    default: Any = None
    priority: Any = None
    engine: Any = None
    platform: Any = None
    deps: Any = None


def models_of_bundle(name: str, models_dir: Path | None) -> Sequence[str]:
    """Return the names of a bundle's models; none if the bundle DEFAULT has no file.

    CatalogError if there is no such bundle, or if it has no models or unknown ones.
    """
    files = {} if models_dir is None else {path.stem: path for path in (models_dir / DIRECTORY).glob("*.yaml")}
    if name not in files:
        if name == DEFAULT:
            return ()
        known = ", ".join(sorted({DEFAULT, *files}))
        raise CatalogError(f"SIE_BUNDLE={name}: no such bundle; {DIRECTORY} in models_dir has {known}")
    assert models_dir is not None
    path, own = files[name], load_directory(models_dir).models
    bundle = parsed(read_bytes(path, MAX_BYTES), path, Bundle, "a bundle needs the key models")
    for model in bundle.models:
        if find_known(model, own) is None:
            raise CatalogError(f"{path}: models: {model}: no model file of the package or of models_dir has this name")
    modules = {_module(each) for each in bundle.adapters}
    by_adapter = [model.sie_id for model in own if _module(model.profile("default").adapter_path or "") in modules]
    if not bundle.models and not by_adapter:
        raise CatalogError(f"{path}: has no models, and no model file of models_dir has one of its adapters")
    return tuple(dict.fromkeys((*bundle.models, *by_adapter)))


def _module(adapter_path: str) -> str:
    """
    >>> _module("sie_server.adapters.clip.adapter:CLIPAdapter"), _module("sie_server.adapters.clip")
    ('sie_server.adapters.clip', 'sie_server.adapters.clip')
    """
    return adapter_path.partition(":")[0].removesuffix(".adapter")
