"""Read model files; every error names the file, the key and the allowed values."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from sie_triton.checkpoints.files import first_line, has_file, read_bytes, shortened
from sie_triton.contract.names import triton_name
from sie_triton.errors import CatalogError, LoadError
from sie_triton.models.catalog.config import ModelConfig
from sie_triton.models.catalog.family_keys import error_detail
from sie_triton.settings.validation import requirement
from sie_triton.settings.yaml_reader import MAX_CHARACTERS, read_yaml

log = logging.getLogger(__name__)

Parsed = TypeVar("Parsed", bound=BaseModel)

# Name in errors of a model file that was sent.
SENT = Path("model file")

# A character has up to four bytes.
MAX_BYTES = 4 * MAX_CHARACTERS


def load_file(path: Path) -> ModelConfig:
    """Read one model file; CatalogError names the file, the key and the allowed values."""
    try:
        return read_model(read_bytes(path, MAX_BYTES), path)
    except OSError as exc:
        raise CatalogError(f"{path}: cannot be read ({exc.strerror})") from exc
    except LoadError as exc:
        raise CatalogError(str(exc)) from exc


def read_model(content: bytes, path: Path) -> ModelConfig:
    """Return the model of a model file's content; CatalogError names `path`, the key and the allowed values."""
    # The last words are for an empty file; weights_path may replace hf_id.
    needs = "a model file needs the keys sie_id, hf_id, tasks, profiles"
    return parsed(content, path, ModelConfig, needs).record_source(path)


def parsed(content: bytes, path: Path, kind: type[Parsed], needs: str) -> Parsed:
    """Return a YAML file's content as `kind`; CatalogError names `path`, the key and the allowed values."""
    try:
        raw = read_yaml(content.decode("utf-8-sig"))
    except UnicodeDecodeError as exc:
        raise CatalogError(f"{path}: not valid UTF-8 (byte 0x{exc.object[exc.start]:02x} at {exc.start})") from exc
    except yaml.YAMLError as exc:
        raise CatalogError(f"{path}: not valid YAML: {exc}") from exc
    if not isinstance(raw, dict):
        what = "is empty" if raw is None else f"contains only {shortened(raw)}"
        raise CatalogError(f"{path}: {what}; {needs} (docs/model-files.md)")
    try:
        return kind.model_validate(raw)
    except ValidationError as exc:
        raise CatalogError("\n".join(f"{path}: {line}" for line in complaints(exc, kind))) from exc


def read_sent(content: bytes) -> ModelConfig:
    """Like `read_model`, for a model file that was sent: it is in no directory, so that its paths must be absolute."""
    model = read_model(content, SENT)
    for key, path in model.paths.items():
        if not os.path.isabs(os.path.expanduser(path)):
            raise CatalogError(
                f"{SENT}: {key}: {path} must begin with /, because a file that was sent has no directory"
            )
    return model


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """The models that were read, in the order of their files, and the errors of the others, by source.

    A file with an error never affects the other models.
    """

    models: Sequence[ModelConfig]
    problems: Mapping[str, str]


def load_directory(directory: Path) -> LoadedModels:
    """Read all model files in the directory; CatalogError if the directory cannot be read."""
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix in (".yaml", ".yml"))
    except OSError as exc:
        raise CatalogError(f"models_dir: {directory}: cannot be read ({exc.strerror})") from exc
    return load_files(paths)


def load_files(paths: Iterable[Path]) -> LoadedModels:
    models, problems = [], {}
    for path in paths:
        try:
            models.append(load_file(path))
        except CatalogError as exc:
            problems[str(path)] = str(exc)
        except Exception as exc:  # a family of another package may raise anything
            log.exception("%s", path)
            problems[str(path)] = f"{path}: cannot be read: {first_line(exc)}"
    return LoadedModels(models, problems)


def starter_set() -> list[ModelConfig]:
    """Return the models that the package ships and that need no access to the hub."""
    return [load_file(path) for path in sorted((_shipped() / "models").glob("*.yaml"))]


def known_models() -> Sequence[str]:
    """Return the names of the public models whose model files the package ships, sorted."""
    names = (path.stem.replace("__", "/", 1) for path in (_shipped() / "known").glob("*.yaml"))
    return sorted(names, key=str.lower)


def known_model(name: str) -> ModelConfig | None:
    """Return the shipped config of a public model; None if the package ships none."""
    path = _shipped() / "known" / f"{triton_name(name)}.yaml"
    return load_file(path) if has_file(path) else None


def _shipped() -> Path:
    return Path(str(resources.files("sie_triton.models.catalog")))


def complaints(error: ValidationError, root: type[BaseModel]) -> list[str]:
    """Return one line per error of pydantic: the key, the problem and the allowed values."""
    lines = []
    for e in error.errors(include_url=False):
        key = ".".join(str(part) for part in e["loc"])
        if e["type"] == "extra_forbidden":
            known = ", ".join(_fields_at(root, e["loc"][:-1]))
            lines.append(f"{key}: unknown key; allowed keys are {known}")
        else:
            lines.append(f"{key}{error_detail(e)}" if key else requirement(e))
    return lines


def _fields_at(root: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    node: Any = root
    for part in loc:
        if isinstance(node, type) and issubclass(node, BaseModel):
            named = node.model_fields.get(str(part))
            node = named.annotation if named else node.__annotations__["__pydantic_extra__"].__args__[-1]
        else:
            node = node.__args__[-1]
        options = [node, *getattr(node, "__args__", ())]
        if getattr(node, "__origin__", None) is not dict:
            node = next((o for o in options if isinstance(o, type) and issubclass(o, BaseModel)), node)
    return list(node.model_fields)
