"""Reads model files; every complaint names the file, the key and what is legal there."""

from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from sie_triton.catalog.config import ModelConfig
from sie_triton.checkpoints.files import shortened
from sie_triton.errors import CatalogError


def load_file(path: Path) -> ModelConfig:
    """Read one model file; CatalogError names the file, the key and the legal values."""
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except OSError as exc:
        raise CatalogError(f"{path}: cannot be read ({exc.strerror})") from exc
    except UnicodeDecodeError as exc:
        raise CatalogError(f"{path}: not valid UTF-8 (byte 0x{exc.object[exc.start]:02x} at {exc.start})") from exc
    except RecursionError as exc:
        raise CatalogError(f"{path}: not a model file: nested too deeply") from exc
    except (yaml.YAMLError, ValueError) as exc:
        raise CatalogError(f"{path}: not valid YAML: {' '.join(str(exc).split())[:300]}") from exc
    try:
        return ModelConfig.model_validate(raw).found_in(path)
    except ValidationError as exc:
        raise CatalogError("\n".join(f"{path}: {line}" for line in complaints(exc, ModelConfig))) from exc


def load_directory(directory: Path) -> list[ModelConfig]:
    """All model files in it; CatalogError where there is no such directory, or two have one sie_id."""
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix in (".yaml", ".yml"))
    except OSError as exc:
        raise CatalogError(f"models_dir: {directory}: cannot be read ({exc.strerror})") from exc
    models: dict[str, ModelConfig] = {}
    for model in map(load_file, paths):
        other = models.setdefault(model.sie_id, model)
        if other is not model:
            raise CatalogError(f"{other.source} and {model.source}: sie_id: both say {model.sie_id}; rename one")
    return list(models.values())


def starter_set() -> list[ModelConfig]:
    """The model files that come with the package."""
    directory = Path(str(resources.files("sie_triton.catalog"))) / "models"
    return [load_file(path) for path in sorted(directory.glob("*.yaml"))]


def complaints(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """A pydantic error in sentences: key, what is wrong, what is legal there."""
    lines = []
    for e in error.errors(include_url=False):
        key = ".".join(str(part) for part in e["loc"])
        if e["type"] == "extra_forbidden":
            known = ", ".join(_fields_at(root, e["loc"][:-1]))
            lines.append(f"{key}: unknown key; known here are {known}")
        else:
            given = "" if e["type"] == "missing" or not key else f" (given {shortened(e['input'])})"
            lines.append(f"{key}: {e['msg']}{given}" if key else e["msg"])
    return lines


def _fields_at(root: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    node: Any = root
    for part in loc:
        if isinstance(node, type) and issubclass(node, BaseModel):
            node = node.model_fields[str(part)].annotation
        else:
            node = node.__args__[-1]
        options = [node, *getattr(node, "__args__", ())]
        if getattr(node, "__origin__", None) is not dict:
            node = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), node)
    return list(node.model_fields)
