"""Implementation of `sie-triton models` for model files."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from sie_triton.contract.spec import ANY_LENGTH, ModelSpec
from sie_triton.controller.commands import MODELS, NoAnswer, ask
from sie_triton.errors import CatalogError, UnbuiltFamily
from sie_triton.models.catalog import ModelConfig, load_file, select
from sie_triton.models.catalog.load import known_model, load_files
from sie_triton.models.catalog.on_disk import doubts, faults
from sie_triton.models.catalog.recognise import explain, to_yaml
from sie_triton.models.catalog.select import apart, hub_source, recognised_directory, small_files, with_variants
from sie_triton.models.weights.local_cache import use_local_cache
from sie_triton.pipeline.render.build import selected, spec_of
from sie_triton.pipeline.render.unloadable import environment_causes
from sie_triton.records.serving_file import SUFFIXES, fault_lines, file_of
from sie_triton.settings import Settings
from sie_triton.settings.sources import default_models_dir
from sie_triton.system.printing import Console, echo

WRONG = "invalid"


def list_running(settings: Settings) -> bool:
    """Print the models and the invalid model files of the running server; return False if no server answers.

    Raise ServerError if one answers, and refuses.
    """
    try:
        answer = ask(settings, MODELS)
    except NoAnswer:
        address = f"{settings.inner_host}:{settings.controller_port}"
        echo(f"no server answers at {address}; `serve` would start:", err=True)
        return False
    for model in answer["models"]:
        echo(f"{model['model']:50} {model['state']:10} {model.get('source', '')}".rstrip())
    for name, source in answer["forwarded"].items():
        echo(f"{name:50} forwarded  {source}")
    for line in fault_lines(answer["problems"], (model.get("source", "") for model in answer["models"])):
        echo(line, err=True)
    return True


def list_served(settings: Settings) -> None:
    """Print the models that `serve` starts if none is named."""
    found = selected(settings, [])
    for model in found.models:
        further = [verb for verb in model.verbs if verb != "encode"]
        gives = ", ".join([*(f"{name} {dim}" for name, dim in model.dims.items()), *further])
        endpoint = model.profile("default").endpoint
        where = f"forwarded to {endpoint.url}" if model.is_forwarded and endpoint else model.weights
        echo(f"{model.sie_id:50} {gives:40} {model.family:22} {where}")
    for problem in found.problems.values():
        echo(f"not served: {problem}", err=True)


def show(model: str, settings: Settings) -> None:
    console = Console()
    found = select([model], settings.models_dir, allow_hub=settings.hf_fallback, cluster=settings.cluster_cache)
    for config in found.models:
        console.print(_table(config, config.resolve(settings.portable_runtime)))
        for line in (*config.warnings(), *config.notes()):
            console.print_line(line, style="yellow" if line.startswith("warning") else "dim")


def check(paths: Sequence[Path], settings: Settings) -> bool:
    """Print all problems of model files and of models' directories, then their number by result.

    Return False if one is invalid.
    """
    models = [model for path in paths for model in _model_files(path)]
    clashes = _clashes([model for model in models if model.is_file()])
    results = Counter(_checked(model, settings, clashes.get(str(model), ())) for model in models)
    num_directories = sum(model.is_dir() for model in models)
    kinds = {"files": len(models) - num_directories, "directories": num_directories}
    counts = {**{kind: count for kind, count in kinds.items() if count}, **dict(sorted(results.items()))}
    echo(", ".join(f"{count} {what}" for what, count in counts.items()))
    return not results[WRONG]


def text_of(model: str, settings: Settings) -> str:
    """Return the text of the model file that a user names: a path, a known model, a directory or a hub id."""
    if (path := Path(os.path.expanduser(model))).is_file():
        return _with_absolute_paths(load_file(path)) or path.read_text(encoding="utf-8-sig")
    if (known := known_model(model)) is not None:
        return Path(known.source).read_text(encoding="utf-8")
    if path.suffix in SUFFIXES:
        raise CatalogError(f"{path.absolute()}: no such file")
    return model_file(model, settings)


def _with_absolute_paths(config: ModelConfig) -> str:
    """Return the text of the model file with absolute paths; empty if it has only such."""
    moved = {key: config.located(path) for key, path in config.paths.items()}
    if moved == config.paths:
        return ""
    weights = {"weights_path": moved["weights_path"]} if config.weights_path else {}
    loras = {name: config.located(where) for name, where in config.loras.items()}
    return to_yaml(config.model_copy(update={**weights, **({"loras": loras} if loras else {})}), "")


def model_file(model: str, settings: Settings, *, name: str | None = None, family: str = "") -> str:
    """Return the text of a new model file for a directory or a hub id; CatalogError if its model cannot be served."""
    directory = Path(os.path.expanduser(model)).resolve()
    if directory.is_dir():
        return to_yaml(*explain(directory, name or directory.name, {"weights_path": str(directory)}, family))
    use_local_cache(settings.local_cache)
    found = small_files(model, allow_hub=settings.hf_fallback, cluster=settings.cluster_cache)
    return to_yaml(*explain(found, name or model, hub_source(model, found), family))


def _table(config: ModelConfig, spec: ModelSpec) -> Table:
    made = Table(title=config.sie_id, show_header=False, title_justify="left")
    for _ in range(2):
        made.add_column(overflow="fold")
    length = "the checkpoint's" if spec.max_sequence_length == ANY_LENGTH else f"{spec.max_sequence_length} tokens"
    rows = {
        "from": config.source,
        "weights": spec.weights,
        "license": config.license or "",
        "family": spec.family,
        "engine": spec.engine,
        "endpoint": f"{spec.endpoint.url}, as {spec.endpoint.model}" if spec.endpoint else "",
        "inputs": ", ".join(spec.inputs),
        "tasks": ", ".join(spec.tasks),
        "outputs": ", ".join(f"{name} {dim}" for name, dim in spec.dims.items()),
        "score modes": ", ".join(spec.score_modes),
        "maximum length": "" if spec.is_forwarded else length,
        "options": ", ".join(f"{name}: {value}" for name, value in spec.options.items() if value not in (None, "", {})),
    }
    rows["adapters"] = "\n".join(f"{name}: {where}" for name, where in spec.loras.items())
    for profile in spec.profiles:
        said: dict[str, Any] = {
            **profile.parameters,
            "query": profile.query_template,
            "document": profile.document_template,
        }
        said |= {"query instruction": profile.query_instruction, "instruction": profile.instruction or ""}
        rows[f"profile {profile.name}"] = "\n".join(f"{key}: {value}" for key, value in said.items() if value != "")
    for name, text in rows.items():
        if text:
            made.add_row(name, text)
    return made


def _model_files(path: Path) -> list[Path]:
    """Return the model files of a directory, or the path itself: a model file, or the directory of a model.

    Models of the hub have YAML files, too, of other kinds.
    """
    files = [] if path.is_file() else sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    return files if files and (default_models_dir(path) or not any(path.glob("*.json"))) else [path]


def _clashes(files: Sequence[Path]) -> dict[str, list[str]]:
    """Return the conflicts of each file with other files of the same directory, by file."""
    found: dict[str, list[str]] = {}
    for directory in dict.fromkeys(file.parent for file in files):
        problems: dict[str, str] = {}
        apart(with_variants(load_files(file for file in files if file.parent == directory).models), problems)
        for source, problem in problems.items():
            found.setdefault(file_of(source), []).append(problem)
    return found


def _checked(file: Path, settings: Settings, clashes: Sequence[str]) -> str:
    """Check a model file or the directory of a model, and print its problems; return the result."""
    errors: list[str] = []
    try:
        config = load_file(file) if file.is_file() else recognised_directory(file)
        spec = spec_of(config, settings.runtime)
        lines = [*config.warnings(), *config.notes(), *_unserved(config.variants(), settings)]
        lines += [f"warning: {file}: {line}" for line in doubts(spec)]
        errors = [*clashes, *(f"{file}: {line}" for line in faults(spec))]
        missing = environment_causes(settings, [spec])
        # If the family chooses the environment, a missing one is not the file's fault.
        errors += [f"{file}: {line}" for line in missing if config.environment]
        lines += [f"warning: {file}: {line}" for line in missing if not config.environment]
    except UnbuiltFamily as exc:
        echo(f"not served: {exc}")
        return "not served"
    except CatalogError as exc:
        errors, lines = str(exc).splitlines(), []
    for line in [*(f"error: {line}" for line in errors), *lines]:
        echo(line)
    return WRONG if errors else "valid"


def _unserved(variants: Sequence[ModelConfig], settings: Settings) -> Iterator[str]:
    """Yield a line for each variant that this version does not serve; CatalogError if a variant is invalid."""
    for variant in variants:
        try:
            variant.resolve(settings.portable_runtime)
        except UnbuiltFamily as exc:
            yield f"not served: {exc}"
