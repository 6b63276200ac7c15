"""A directory as a library saves it → ModelConfig; no model file written. Each family knows what is its own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sie_triton.catalog.config import ModelConfig
from sie_triton.catalog.load import complaints
from sie_triton.catalog.tasks import Inputs
from sie_triton.checkpoints.contents import check_complete
from sie_triton.errors import CatalogError, LoadError
from sie_triton.families import Recognised, families, family
from sie_triton.spec import ONNX
from sie_triton.weights.locate import locate


def recognise(directory: Path, model: str, source: dict[str, Any], family_name: str = "") -> ModelConfig:
    """Describe the model in `directory`; `source` is its hf_id or weights_path.

    With `family_name` that family says what it would make of it, where the files alone do not say it is one.
    Raises CatalogError when the directory holds no model this server can run.
    """
    return explain(directory, model, source, family_name)[0]


def explain(directory: Path, model: str, source: dict[str, Any], family_name: str = "") -> tuple[ModelConfig, str]:
    """As `recognise`, with what in the directory says so."""
    try:
        name, found = family_in(directory, family_name)
        if "weights_path" in source and found.weights:  # of the hub only small files are here yet
            check_complete(*found.weights, takes_onnx=ONNX in family(name).engines)
    except LoadError as exc:
        raise CatalogError(str(exc)) from exc
    try:
        return config_of(model, source, name, found).found_in(directory, found.reason), found.reason
    except ValidationError as exc:
        raise CatalogError("\n".join(f"{directory}: {line}" for line in complaints(exc, ModelConfig))) from exc


def config_of(model: str, source: Mapping[str, Any], family_name: str, found: Recognised) -> ModelConfig:
    """What that family has found, as a model file says it; pydantic's ValidationError where `model` is no name."""
    usual, reads = Inputs().model_dump(), family(family_name).inputs
    encode = {"encode": {output: {"dim": dim} for output, dim in found.dims.items()}} if found.dims else {}
    done = {"score": found.scores, "extract": found.extracts}
    others: dict[str, Any] = {verb: {} for verb, is_done in done.items() if is_done}
    loadtime = {"loadtime": dict(found.options)} if found.options else {}
    runtime = {"runtime": given} if (given := _runtime(found)) else {}
    options = {"adapter_options": {**loadtime, **runtime}} if loadtime or runtime else {}
    content = {
        "sie_id": model,
        **source,
        "inputs": {each: each in reads for each, read in usual.items() if read or each in reads},
        "tasks": {**encode, **others},
        "max_sequence_length": found.max_sequence_length,
        "profiles": {"default": {"adapter_path": family_name, **options}},
    }
    return ModelConfig.model_validate(content)


def to_yaml(config: ModelConfig, reason: str) -> str:
    """The model file of a config, `reason` as a comment at its top: `load_file` reads an equal one."""
    shown = ("".join(letter if letter.isprintable() else " " for letter in line) for line in reason.splitlines())
    comment = "".join(f"# {line}\n" for line in shown)
    content = config.model_dump(mode="json", exclude_unset=True)
    readable, escaped = (
        yaml.safe_dump(content, sort_keys=False, allow_unicode=each, width=110) for each in (True, False)
    )
    return comment + (escaped if "\x85" in readable else readable)  # PyYAML takes it for a line break


def family_in(directory: Path, family_name: str = "") -> tuple[str, Recognised]:
    """The first that knows what is in `directory`; LoadError where it is none, or cannot be served.

    `family_name`: that one alone, doubtful or not.
    """
    asked = [(family_name, family(family_name))] if family_name else families()
    for name, kind in asked:
        try:
            found = kind.recognise(directory)
        except LoadError:
            raise
        except Exception as exc:  # of a family from outside
            raise LoadError(f"{directory}: the family {name} fails on it: {type(exc).__name__}: {exc}") from exc
        if found is not None and found.doubt and not family_name:
            raise LoadError(found.doubt, "unsupported")
        if found is not None:
            return name, found
    who = f"the family {family_name} does not know" if family_name else "no family knows"
    raise LoadError(f"{directory}: {who} what this is", "unsupported")


def _runtime(found: Recognised) -> Mapping[str, Any]:
    """What requests leave open, as the files have it: a request's instruction stands in place of the prompt of queries.

    The prompts of other texts are left to the files: a doc_template would stand before texts without a role too, and
    whatever the request's instruction is.
    """
    given: dict[str, Any] = {} if found.normalize is None else {"normalize": found.normalize}
    if found.query_prompt:
        given |= {"query_template": "{instruction}{text}", "default_instruction": found.query_prompt}
    return given


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
