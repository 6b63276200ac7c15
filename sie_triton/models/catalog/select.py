"""Resolve names that a user types to ModelConfigs: model files, directories, known public models, hub ids."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from sie_triton.contract.did_you_mean import did_you_mean
from sie_triton.contract.names import is_pattern, matches, triton_name
from sie_triton.errors import CatalogError, LoadError
from sie_triton.models.catalog.config import ModelConfig
from sie_triton.models.catalog.load import (
    LoadedModels,
    known_model,
    known_models,
    load_directory,
    load_file,
    starter_set,
)
from sie_triton.models.catalog.names import conflict_key
from sie_triton.models.catalog.recognise import recognise
from sie_triton.models.families import families
from sie_triton.models.weights.locate import HUB, SMALL_FILES, locate
from sie_triton.records.serving_file import is_model_file

NOT_LISTED = "no model file has this sie_id"

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)

# Maximum size in bytes of the files by which a model on the hub is recognised: configurations and tokenizers.
MAX_SMALL_BYTES = 256 * 1024**2


def select(
    names: Sequence[str],
    models_dir: Path | None,
    *,
    allow_hub: bool,
    cluster: str = "",
    matching: Sequence[str] = (),
    preloaded: Sequence[str] = (),
) -> LoadedModels:
    """Return the models to serve: those named, else all of `models_dir`, else the starter set; with their variants.

    Without `names`, a model is served if its name matches one of the patterns `matching` (`BAAI/*`), or if there are no
    patterns. The models to preload are served in addition. Small files of a hub id come from the cache `cluster`, else
    from the hub. CatalogError if a name is not found, saying where it was looked for, or if two named models conflict.
    Model files of `models_dir` that cannot be served are left out and reported as problems.
    """
    own = load_directory(models_dir) if models_dir else LoadedModels((), {})
    problems: dict[str, str] = {}
    if names:
        named = [*with_variants(_find(name, own, allow_hub=allow_hub, cluster=cluster) for name in names)]
        models = apart(_with_preloaded(named, preloaded, own, allow_hub=allow_hub, cluster=cluster), problems)
        if problems:
            raise CatalogError("\n".join(problems.values()))
        return LoadedModels(models, problems)
    if models_dir and not own.models and not own.problems and not matching:
        raise CatalogError(f"models_dir: {models_dir}: contains no model file (*.yaml, *.yml)")
    matched = matching_models(own.models if models_dir else starter_set(), own.models, matching)
    chosen = _with_preloaded([*with_variants(matched)], preloaded, own, allow_hub=allow_hub, cluster=cluster)
    if models_dir and not chosen and (own.models or not own.problems):
        raise CatalogError(f"model_filter: {','.join(matching)}: matches no model of {models_dir}")
    models = apart(chosen, problems)
    return LoadedModels(models, {**own.problems, **problems})


def matching_models(
    default: Iterable[ModelConfig], own: Sequence[ModelConfig], patterns: Sequence[str]
) -> list[ModelConfig]:
    """Return those of `default` that match a pattern, and the known models that `patterns` name; without any, all."""
    named = (find_known(name, own) for name in patterns if not is_pattern(name))
    return [*(model for model in default if matches(model.sie_id, patterns)), *filter(None, named)]


def find_known(name: str, own: Iterable[ModelConfig]) -> ModelConfig | None:
    """Return a model of the package, one of the user's `own`, or a variant of these, by its name; None if unknown."""
    known = {model.sie_id: model for model in (*starter_set(), *own)}
    return known.get(name) or known_model(name) or _variant(name, known)


def _with_preloaded(
    chosen: Sequence[ModelConfig], preloaded: Iterable[str], own: LoadedModels, *, allow_hub: bool, cluster: str
) -> list[ModelConfig]:
    """Return the chosen models, and those of `preloaded` that are not among them."""
    others = set(preloaded) - {model.sie_id for model in chosen}
    try:
        return [*chosen, *(_find(name, own, allow_hub=allow_hub, cluster=cluster) for name in sorted(others))]
    except CatalogError as exc:
        raise CatalogError(f"preload_models: {exc}") from exc


def _find(name: str, own: LoadedModels, *, allow_hub: bool, cluster: str) -> ModelConfig:
    found = find_known(name, own.models)
    if found is not None:
        return found
    if is_model_file(name):
        return load_file(file_named(name))
    try:
        return _unlisted(name, [model.sie_id for model in own.models], allow_hub=allow_hub, cluster=cluster)
    except CatalogError as exc:
        # The model may be defined in a file that cannot be read.
        raise CatalogError("\n".join((str(exc), *own.problems.values()))) from exc


def file_named(name: str) -> Path:
    """Return the absolute path of a model file, given the path that the user typed."""
    return Path(os.path.expanduser(name)).absolute()


def _variant(name: str, known: dict[str, ModelConfig]) -> ModelConfig | None:
    """Return the variant called `name`, which is `org/name.profile`; None if there is none."""
    for at in (at for at, character in enumerate(name) if character == "."):
        base = known.get(name[:at]) or known_model(name[:at])
        if base is not None:
            return next((variant for variant in base.variants() if variant.sie_id == name), None)
    return None


def with_variants(models: Iterable[ModelConfig]) -> Iterable[ModelConfig]:
    for model in models:
        yield model
        try:
            yield from model.variants()
        except CatalogError:  # an error of its family, raised again when the model is resolved
            continue


def apart(
    models: Iterable[ModelConfig], problems: dict[str, str], served: Mapping[str, str] = MappingProxyType({})
) -> list[ModelConfig]:
    """Return the models without duplicates and name conflicts.

    Of two conflicting models, the one that is served already stays, else the first; the other gets a line in
    `problems`. `served` maps the names of served models to their sources.
    """
    taken: dict[str, tuple[str, str]] = {}
    found: list[ModelConfig] = []
    for model in sorted(models, key=lambda model: served.get(model.sie_id) != model.source):
        name, source = taken.setdefault(conflict_key(model.sie_id), (model.sie_id, model.source))
        if source != model.source:
            problems[model.source] = clash(model, name, source)
        elif model.source not in [each.source for each in found]:
            found.append(model)
    return found


def clash(model: ModelConfig, other: str, source: str) -> str:
    names = sorted({triton_name(other), triton_name(model.sie_id)})
    how = f"be served as {names[0]}" if len(names) == 1 else f"share a directory on a case-insensitive disk: {names}"
    return (
        f"{source} and {model.source}: both would {how}; "
        "give one of them another sie_id; for a directory, write a model file with its weights_path"
    )


def _unlisted(name: str, known: Iterable[str], *, allow_hub: bool, cluster: str) -> ModelConfig:
    if os.path.isdir(path := os.path.expanduser(name)):
        return recognised_directory(Path(path))
    try:
        return from_hub(name, allow_hub=allow_hub, cluster=cluster, known=known)
    except CatalogError as exc:
        searched = f"{NOT_LISTED}, there is no directory {os.path.abspath(path)}"
        raise CatalogError(str(exc).replace(NOT_LISTED, searched)) from exc


def recognised_directory(path: Path) -> ModelConfig:
    """Return the model in a directory, which has the directory's name; CatalogError if no family serves it."""
    directory = path.resolve()
    return recognise(directory, directory.name, {"weights_path": str(directory)})


def from_hub(
    name: str, *, allow_hub: bool, cluster: str = "", known: Iterable[str] = (), max_bytes: int | None = None
) -> ModelConfig:
    """Recognise a model on the hub by its small files; CatalogError if it is not there, or of no family."""
    directory = small_files(name, allow_hub=allow_hub, cluster=cluster, known=known, max_bytes=max_bytes)
    return recognise(directory, name, hub_source(name, directory))


def hub_source(name: str, directory: Path) -> dict[str, str]:
    """Return the source keys of a recognised hub model, pinned to the commit, by which the cache names `directory`."""
    return {"hf_id": name, "hf_revision": directory.name}


def small_files(
    name: str, *, allow_hub: bool, cluster: str = "", known: Iterable[str] = (), max_bytes: int | None = None
) -> Path:
    """Return a local directory with all files of a hub model except its weights.

    CatalogError if the hub has no such model. `known` are further suggestions for a misspelt name.
    """
    meant = did_you_mean(name, (*known, *(model.sie_id for model in starter_set()), *known_models()))
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        reason = f"{NOT_LISTED}, and it is no hub id (org/name)"
        raise CatalogError(f"{name}: {reason}{meant}")
    try:
        return locate(
            f"{HUB}{name}", allow_hub=allow_hub, cluster=cluster, patterns=recognised_by(), max_bytes=max_bytes
        )
    except LoadError as exc:
        raise CatalogError(f"{name}: {NOT_LISTED}, and {exc}{meant}") from exc


def recognised_by() -> tuple[str, ...]:
    """Return the patterns of the files that families read to recognise a directory."""
    return (*SMALL_FILES, *(pattern for _, kind in families() for pattern in kind.files))


def all_known(own: Sequence[ModelConfig], patterns: Sequence[str]) -> list[ModelConfig]:
    """Return every known model whose name matches one of `patterns`, if there are any; `own` are the user's."""
    shipped = [each for name in known_models() if (each := known_model(name)) is not None]
    named = {model.sie_id: model for model in (*shipped, *starter_set(), *own)}
    return [model for model in with_variants(named.values()) if matches(model.sie_id, patterns)]


def mentioned(
    name: str, own: Sequence[ModelConfig], patterns: Sequence[str], *, any_model: bool, allow_hub: bool, cluster: str
) -> ModelConfig:
    """Return the known model `name`, or with `any_model` that of the hub; CatalogError says why it may not be served.

    The name comes from a client, so no path is looked at.
    """
    if not matches(name, patterns):
        raise CatalogError(f"{name} may not be served here: SIE_MODEL_FILTER allows {', '.join(patterns)}")
    if found := find_known(name, own):
        return found
    if not any_model:
        raise CatalogError(f"{name} is not a known model; with SIE_ALLOW_ANY_MODEL it may be any model on the hub")
    if not HUB_ID.fullmatch(name):
        raise CatalogError(f"{name} is neither a known model nor a hub id (org/name)")
    return from_hub(name, allow_hub=allow_hub, cluster=cluster, max_bytes=MAX_SMALL_BYTES)
