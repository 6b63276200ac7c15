"""Reads model files; every complaint names the file, the key and what is legal there."""

from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from sie_triton.catalog.config import ModelConfig
from sie_triton.errors import CatalogError


def load_file(path: Path) -> ModelConfig:
    """Read one model file; CatalogError names the file, the key and the legal values."""
    try:
        raw = yaml.safe_load(path.read_text())
    except OSError as exc:
        raise CatalogError(f"{path}: cannot be read ({exc.strerror})") from exc
    except yaml.YAMLError as exc:
        raise CatalogError(f"{path}: not valid YAML: {exc}") from exc
    try:
        return ModelConfig.model_validate(raw)
    except ValidationError as exc:
        raise CatalogError("\n".join(f"{path}: {line}" for line in complaints(exc, ModelConfig))) from exc


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
            given = "" if e["type"] == "missing" or not key else f" (given {e['input']!r})"
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
