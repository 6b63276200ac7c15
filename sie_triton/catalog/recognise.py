"""A directory as a library saves it → ModelConfig; no model file written. Each family knows what is its own."""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sie_triton.catalog.config import ModelConfig
from sie_triton.catalog.load import complaints
from sie_triton.catalog.options import AdapterOptions, Profile, RuntimeOptions
from sie_triton.catalog.tasks import Encode, Inputs, Output, Tasks
from sie_triton.errors import CatalogError, LoadError
from sie_triton.families import Recognised, families, family
from sie_triton.weights.locate import locate


def recognise(directory: Path, model: str, source: dict[str, Any]) -> ModelConfig:
    """Describe the model in `directory`; `source` is its hf_id or weights_path.

    Raises CatalogError when the directory holds no model this server can run.
    """
    try:
        name, found = family_in(directory)
    except LoadError as exc:
        raise CatalogError(str(exc)) from exc
    runtime = RuntimeOptions(normalize=found.normalize)
    encode = Encode(**{output: Output(dim=dim) for output, dim in found.dims.items()}) if found.dims else None
    try:
        return ModelConfig(
            sie_id=model,
            **source,
            inputs=Inputs(**{kind: kind in family(name).inputs for kind in Inputs.model_fields}),
            tasks=Tasks.model_validate({"encode": encode, "score": {} if found.scores else None}),
            max_sequence_length=found.max_sequence_length,
            profiles={"default": Profile(adapter_path=name, adapter_options=AdapterOptions(runtime=runtime))},
        ).found_in(directory)
    except ValidationError as exc:
        raise CatalogError("\n".join(f"{directory}: {line}" for line in complaints(exc, ModelConfig))) from exc


def family_in(directory: Path) -> tuple[str, Recognised]:
    """The first that knows what is in `directory`; LoadError where it is none, or cannot be served."""
    for name, kind in families():
        try:
            found = kind.recognise(directory)
        except LoadError:
            raise
        except Exception as exc:  # of a family from outside
            raise LoadError(f"{directory}: the family {name} fails on it: {type(exc).__name__}: {exc}") from exc
        if found is not None:
            return name, found
    raise LoadError(f"{directory}: no family knows what this is", "unsupported")


def check_dims(config: ModelConfig) -> None:
    """CatalogError where a model file's dims are not what a directory at hand says.

    What is not at hand, or costs more than a look at small files, is compared when the weights are loaded.
    """
    kind = family(config.family)
    if config.weights.startswith("hub://") or not kind.recognises_quickly:
        return
    try:
        directory = locate(config.weights, allow_hub=False)
        found = kind.recognise(directory)
    except LoadError:  # the same then, and a directory may be put right until then
        return
    for name, dim in (found.dims if found is not None else {}).items():
        given = config.dims.get(name)
        if given not in (None, dim):
            raise CatalogError(
                f"{config.source}: tasks.encode.{name}.dim: must be {dim}, as in {directory} (given {given})"
            )
