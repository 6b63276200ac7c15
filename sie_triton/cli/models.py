"""`sie-triton models`: served models, known models and model files."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sie_triton.cli.options import RUNNING, read_model_settings, running_options, settings_of_running, settings_options
from sie_triton.system.printing import echo


@click.group()
def models() -> None:
    """List, show, check and write model files; add models to a running server.

    \b
    sie-triton models ls                   models of the running server; without one, those `serve` would start
    sie-triton models ls --known           public models whose model files are part of this package
    sie-triton models show BAAI/bge-m3     resolved configuration of a model or a directory
    sie-triton models check my-models      all problems of model files, including keys without effect
    sie-triton models check ./my-model     all problems of a model's directory, including truncated weights
    sie-triton models init ./my-model      write a model file for a directory or a model on the hub
    sie-triton models add org/name         serve a model on the running server; rm removes it
    """


@models.command()
@click.option("--known", is_flag=True, help="list public models whose model files are part of this package")
@running_options(["models_dir", "model_filter", *RUNNING, "auth_tokens"])
def ls(known: bool, **flags: Any) -> None:
    """List the models of the running server.

    If no server answers, or with --models-dir or --model-filter, list the models that `serve` would start if none is
    named.
    """
    from sie_triton.cli.model_files import list_running, list_served
    from sie_triton.models.catalog import known_models

    if known:
        echo("\n".join(known_models()))
    elif flags["models_dir"] or flags["model_filter"] or not list_running(settings_of_running(**flags)):
        list_served(read_model_settings(**flags))


@models.command()
@click.argument("model")
@settings_options(["models_dir", "hf_fallback"])
def show(model: str, **flags: Any) -> None:
    """Show the resolved configuration of MODEL: a name, a directory, or a hub id."""
    from sie_triton.cli.model_files import show as run

    run(model, read_model_settings(**flags))


@models.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True))
@settings_options(["models_dir", "environments_dir"])
def check(paths: Sequence[Path], **flags: Any) -> None:
    """Print all problems of model files, of directories of them (default: --models-dir), or of models' directories.

    A model's directory is checked as it is served: what it is recognised as, its configuration, and whether its weights
    are complete. The exit status is 1 if a file or a directory is invalid.
    """
    from sie_triton.cli.model_files import check as run

    settings = read_model_settings(**flags)
    given = paths or ([settings.models_dir] if settings.models_dir else [])
    if not given:
        raise click.UsageError("name model files or directories, or give --models-dir")
    sys.exit(0 if run(given, settings) else 1)


@models.command()
@click.argument("model")
@click.option("--name", help="name of the model; default: its name on the hub, or the directory's name")
@click.option("--family", default="", help="family of the model, if its files fit several")
@click.option("--output", type=click.Path(path_type=Path), help="file to write; default: standard output")
@settings_options(["hf_fallback"])
def init(model: str, name: str | None, family: str, output: Path | None, **flags: Any) -> None:
    """Write a model file for MODEL, a directory or a hub id, from the information in its files."""
    from sie_triton.cli.model_files import model_file

    if output is not None and output.exists():
        raise click.UsageError(f"{output} already exists; remove it first")
    text = model_file(model, read_model_settings(**flags), name=name, family=family)
    if output is None:
        echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        echo(f"wrote {output}; check it with sie-triton models check {output}", err=True)


@models.command()
@click.argument("model")
@running_options([*RUNNING, "hf_fallback"])
def add(model: str, **flags: Any) -> None:
    """Serve MODEL on the running server: a model file, the name of a known model, a directory, or a hub id.

    A model of the same name is served until the new one replaces it; no request fails. MODEL is also served after later
    starts with the same --data-dir.
    """
    from sie_triton.cli.model_files import text_of
    from sie_triton.controller.commands import add as run

    settings = settings_of_running(**flags)
    run(settings, text_of(model, settings))


@models.command()
@click.argument("model")
@running_options(RUNNING)
def rm(model: str, **flags: Any) -> None:
    """Remove MODEL from the running server. Its requests in progress are completed."""
    from sie_triton.controller.commands import remove

    remove(settings_of_running(**flags), model)
