"""`sie-triton models`: what is served, what a model file says, which models are known."""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sie_triton.catalog import ModelConfig, known_models, load_file, select
from sie_triton.cli.options import settings_options
from sie_triton.errors import CatalogError, UnbuiltFamily
from sie_triton.render.build import selected
from sie_triton.settings import Settings, read_settings
from sie_triton.spec import ANY_LENGTH, ModelSpec

WRONG = "wrong"


@click.group()
def models() -> None:
    """List, show, check and write model files; add models to a running server.

    \b
    sie-triton models ls                   what `serve` would start
    sie-triton models ls --known           public models whose files come with the package
    sie-triton models show BAAI/bge-m3     what is made of a model's file, or of a directory
    sie-triton models check my-models/     every complaint about model files, and what they say in vain
    sie-triton models init ./my-model      a model file for what is in a directory, or on the hub
    sie-triton models add org/name         serve it on the running server; rm takes it out
    """


@models.command()
@click.option("--known", is_flag=True, help="the names of public models whose files come with the package")
@settings_options(["models_dir", "model_filter"])
def ls(known: bool, **flags: Any) -> None:
    """List the models that `serve` starts where none is named: those of --models-dir, else the demo model."""
    if known:
        click.echo("\n".join(known_models()))
        return
    found = selected(read_settings(**flags), [])
    for model in found.models:
        gives = ", ".join([*(f"{name} {dim}" for name, dim in model.dims.items()), *_further(model)])
        click.echo(f"{model.sie_id:50} {gives:40} {model.family:22} {model.weights}")
    for problem in found.problems:
        click.echo(f"not served: {problem}", err=True)


def _further(model: ModelConfig) -> Sequence[str]:
    return [verb for verb in model.verbs if verb != "encode"]


@models.command()
@click.argument("model")
@settings_options(["models_dir", "hf_fallback"])
def show(model: str, **flags: Any) -> None:
    """Show what is made of MODEL: a name, a directory, or a hub id."""
    settings = read_settings(**flags)
    console = Console(highlight=False)
    for config in select([model], settings.models_dir, allow_hub=settings.hf_fallback).models:
        console.print(_table(config, config.resolve(settings.portable_runtime)))
        for line in (*config.warnings(), *config.notes()):
            console.print(line, style="yellow" if line.startswith("warning") else "dim")


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
        "reads": ", ".join(spec.inputs),
        "does": ", ".join(spec.tasks),
        "outputs": ", ".join(f"{name} {dim}" for name, dim in spec.dims.items()),
        "scores by": ", ".join(spec.score_modes),
        "longest item": length,
        "options": ", ".join(f"{name}: {value}" for name, value in spec.options.items() if value not in (None, "", {})),
    }
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


@models.command()
@click.argument("model")
@click.option("--name", help="the model's name; default: that of the hub, or of the directory")
@click.option("--family", default="", help="what to take it for, where its files allow for several")
@click.option("--output", type=click.Path(path_type=Path), help="write it there, not to the screen")
@settings_options(["hf_fallback"])
def init(model: str, name: str | None, family: str, output: Path | None, **flags: Any) -> None:
    """Write a model file for MODEL, a directory or a hub id, of what its files say."""
    text = model_file(model, read_settings(**flags), name=name, family=family)
    if output is None:
        click.echo(text, nl=False)
        return
    if output.exists():
        raise click.UsageError(f"{output} is there already; remove it first")
    output.write_text(text, encoding="utf-8")
    click.echo(f"wrote {output}; sie-triton models check {output} says more", err=True)


def model_file(model: str, settings: Settings, *, name: str | None = None, family: str = "") -> str:
    """The text of a file for it; CatalogError where it is none that can be served."""
    directory = Path(model).expanduser()
    if directory.is_dir():
        source = {"weights_path": str(directory.resolve())}
        return to_yaml(*explain(directory.resolve(), name or directory.resolve().name, source, family))
    found = locate_hub(model, allow_hub=settings.hf_fallback)
    return to_yaml(*explain(found, name or model, {"hf_id": model}, family))


RUNNING = ["host", "controller_port", "data_dir", "admin_token"]


@models.command()
@click.argument("model")
@settings_options([*RUNNING, "hf_fallback"])
def add(model: str, **flags: Any) -> None:
    """Serve MODEL on the running server: a model file, a name that we know, a directory, or a hub id.

    What is served under its name goes on until the new one takes its place; no request fails. It stays for later
    starts with the same --data-dir.
    """
    settings = read_settings(**flags)
    path = Path(model)
    if path.is_file():
        text = path.read_text(encoding="utf-8-sig")
    elif (known := known_model(model)) is not None:
        text = Path(known.source).read_text(encoding="utf-8")
    else:
        text = model_file(model, settings)
    commands.add(settings, text)


@models.command()
@click.argument("model")
@settings_options(RUNNING)
def rm(model: str, **flags: Any) -> None:
    """Take MODEL out of the running server; what it is working on is finished."""
    commands.remove(read_settings(**flags), model)


@models.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True))
@settings_options(["models_dir"])
def check(paths: Sequence[Path], **flags: Any) -> None:
    """Say everything about model files, or directories of them (default: --models-dir); status 1 if one is wrong."""
    settings = read_settings(**flags)
    given = paths or ([settings.models_dir] if settings.models_dir else [])
    if not given:
        raise click.UsageError("name model files, or a directory of them, or give --models-dir")
    files = [file for path in given for file in _model_files(path)]
    results = Counter(_checked(file, settings) for file in files)
    click.echo(", ".join([f"{len(files)} files", *(f"{count} {result}" for result, count in sorted(results.items()))]))
    sys.exit(1 if results[WRONG] else 0)


def _model_files(path: Path) -> list[Path]:
    return sorted(file for file in path.iterdir() if file.suffix in (".yaml", ".yml")) if path.is_dir() else [path]


def _checked(file: Path, settings: Settings) -> str:
    try:
        config = load_file(file)
        config.resolve(settings.portable_runtime)
        lines = [*config.warnings(), *config.notes(), *_unserved(config.variants(), settings)]
    except UnbuiltFamily as exc:
        click.echo(f"not served: {exc}")
        return "of a kind to come"
    except CatalogError as exc:
        click.echo("\n".join(f"error: {line}" for line in str(exc).splitlines()))
        return WRONG
    for line in lines:
        click.echo(line)
    return "right"


def _unserved(variants: Sequence[ModelConfig], settings: Settings) -> Iterator[str]:
    """CatalogError where one is wrong."""
    for variant in variants:
        try:
            variant.resolve(settings.portable_runtime)
        except UnbuiltFamily as exc:
            yield f"not served: {exc}"
