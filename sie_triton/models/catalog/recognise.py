"""Recognise a checkpoint directory, by the rules of each family, and describe it as a ModelConfig."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sie_triton.checkpoints.contents import check_complete, check_headers
from sie_triton.contract.spec import ONNX
from sie_triton.errors import CatalogError, LoadError
from sie_triton.models.catalog.config import ModelConfig
from sie_triton.models.catalog.load import complaints
from sie_triton.models.catalog.tasks import Inputs
from sie_triton.models.families import Recognised, families, family
from sie_triton.models.weights.locate import locate


def recognise(directory: Path, model: str, source: dict[str, Any], family_name: str = "") -> ModelConfig:
    """Describe the model in `directory`; `source` is its hf_id or weights_path.

    `family_name` names the family if the files alone do not determine it. CatalogError if the directory holds no model
    that this server can run.
    """
    return explain(directory, model, source, family_name)[0]


def explain(directory: Path, model: str, source: dict[str, Any], family_name: str = "") -> tuple[ModelConfig, str]:
    """Return the result of `recognise`, and why the directory was recognised."""
    try:
        name, found = family_in(directory, family_name)
        if "weights_path" in source and found.weights:  # from the hub, only small files are local yet
            check_complete(*found.weights, takes_onnx=ONNX in family(name).engines)
    except LoadError as exc:
        raise CatalogError(str(exc)) from exc
    try:
        return config_of(model, source, name, found).record_source(directory, found.reason), found.reason
    except ValidationError as exc:
        raise CatalogError("\n".join(f"{directory}: {line}" for line in complaints(exc, ModelConfig))) from exc


def config_of(model: str, source: Mapping[str, Any], family_name: str, found: Recognised) -> ModelConfig:
    """Return the recognised model as a ModelConfig; pydantic's ValidationError if `model` is not a valid name."""
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
    """Return the config as a model file with `reason` as a comment on top; `load_file` reads back an equal config."""
    shown = ("".join(letter if letter.isprintable() else " " for letter in line) for line in reason.splitlines())
    comment = "".join(f"# {line}\n" for line in shown)
    content = config.model_dump(mode="json", exclude_unset=True)
    readable, escaped = (
        yaml.safe_dump(content, sort_keys=False, allow_unicode=each, width=110) for each in (True, False)
    )
    return comment + (escaped if "\x85" in readable else readable)  # PyYAML reads \x85 as a line break


def family_in(directory: Path, family_name: str = "") -> tuple[str, Recognised]:
    """Return the first family that recognises `directory`; LoadError if none does, or if the model cannot be served.

    If `family_name` is given, only that family is tried, and its doubts are ignored.
    """
    check_headers(directory)
    asked = [(family_name, family(family_name))] if family_name else families()
    for name, kind in asked:
        try:
            found = kind.recognise(directory)
        except LoadError:
            raise
        except Exception as exc:  # a third-party family may raise anything
            raise LoadError(f"{directory}: the family {name} failed to read it: {type(exc).__name__}: {exc}") from exc
        if found is not None and found.doubt and not family_name:
            raise LoadError(found.doubt, "unsupported")
        if found is not None:
            return name, found
    who = f"the family {family_name} does not recognise" if family_name else "no family recognises"
    raise LoadError(f"{directory}: {who} this model", "unsupported")


def _runtime(found: Recognised) -> Mapping[str, Any]:
    """Return the runtime options that the checkpoint's files imply: defaults for the parameters that a request omits.

    A request's instruction replaces the checkpoint's query prompt. Prompts of other texts are not turned into a
    doc_template, because a doc_template also applies to texts without a role, and regardless of the instruction.
    """
    given: dict[str, Any] = {} if found.normalize is None else {"normalize": found.normalize}
    if found.query_prompt:
        given |= {"query_template": "{instruction}{text}", "default_instruction": found.query_prompt}
    return given


def check_dims(config: ModelConfig) -> None:
    """Raise CatalogError if the dims of a model file differ from those of its local directory.

    If the weights are not local, or if recognition reads more than small files, the dims are compared at load time.
    """
    if config.is_forwarded or config.weights.startswith("hub://"):
        return
    kind = family(config.family)
    if not kind.recognises_quickly:
        return
    try:
        directory = locate(config.weights, allow_hub=False)
        check_headers(directory)
        found = kind.recognise(directory)
    except LoadError:  # raised again at load time; the directory may be repaired before that
        return
    for name, dim in (found.dims if found is not None else {}).items():
        given = config.dims.get(name)
        if given not in (None, dim):
            raise CatalogError(
                f"{config.source}: tasks.encode.{name}.dim: must be {dim}, as in {directory} (given {given})"
            )
