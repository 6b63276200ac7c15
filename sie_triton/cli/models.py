"""`sie-triton models`: what is served, what a model file says, which models are known."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sie_triton.cli.options import settings_of_running, settings_options
from sie_triton.settings import read_settings

RUNNING = ["host", "controller_port", "data_dir", "admin_token"]


@click.group()
def models() -> None:
    """List, show, check and write model files; add models to a running server.

    \b
    sie-triton models ls                   models of the running server; without one, those `serve` would start
    sie-triton models ls --known           public models whose files come with the package
    sie-triton models show BAAI/bge-m3     what is made of a model's file, or of a directory
    sie-triton models check my-models      every complaint about model files, including keys without effect
    sie-triton models init ./my-model      a model file for what is in a directory, or on the hub
    sie-triton models add org/name         serve it on the running server; rm takes it out
    """


@models.command()
@click.option("--known", is_flag=True, help="the names of public models whose files come with the package")
@settings_options(["models_dir", "model_filter", "host", "controller_port"])
def ls(known: bool, **flags: Any) -> None:
    """List the models of the running server.

    If no server answers, or with --models-dir or --model-filter, list the models that `serve` starts if none is named.
    """
    from sie_triton.catalog import known_models
    from sie_triton.cli.model_files import list_running, list_served

    settings = read_settings(**flags)
    if known:
        click.echo("\n".join(known_models()))
    elif flags["models_dir"] or flags["model_filter"] or not list_running(settings):
        list_served(settings)


@models.command()
@click.argument("model")
@settings_options(["models_dir", "hf_fallback"])
def show(model: str, **flags: Any) -> None:
    """Show what is made of MODEL: a name, a directory, or a hub id."""
    from sie_triton.cli.model_files import show as run

    run(model, read_settings(**flags))


@models.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path, exists=True))
@settings_options(["models_dir", "environments_dir"])
def check(paths: Sequence[Path], **flags: Any) -> None:
    """Say everything about model files, or directories of them (default: --models-dir); status 1 if one is wrong."""
    from sie_triton.cli.model_files import check as run

    settings = read_settings(**flags)
    given = paths or ([settings.models_dir] if settings.models_dir else [])
    if not given:
        raise click.UsageError("name model files, or a directory of them, or give --models-dir")
    sys.exit(0 if run(given, settings) else 1)


@models.command()
@click.argument("model")
@click.option("--name", help="the model's name; default: that of the hub, or of the directory")
@click.option("--family", default="", help="what to take it for, where its files allow for several")
@click.option("--output", type=click.Path(path_type=Path), help="write it there, not to the screen")
@settings_options(["hf_fallback"])
def init(model: str, name: str | None, family: str, output: Path | None, **flags: Any) -> None:
    """Write a model file for MODEL, a directory or a hub id, of what its files say."""
    from sie_triton.cli.model_files import model_file

    if output is not None and output.exists():
        raise click.UsageError(f"{output} is there already; remove it first")
    text = model_file(model, read_settings(**flags), name=name, family=family)
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")
        click.echo(f"wrote {output}; sie-triton models check {output} says more", err=True)


@models.command()
@click.argument("model")
@settings_options([*RUNNING, "hf_fallback"])
def add(model: str, **flags: Any) -> None:
    """Serve MODEL on the running server: a model file, a name that we know, a directory, or a hub id.

    What is served under its name goes on until the new one takes its place; no request fails. It stays for later
    starts with the same --data-dir.
    """
    from sie_triton.cli.model_files import text_of
    from sie_triton.controller.commands import add as run

    settings = settings_of_running(**flags)
    run(settings, text_of(model, settings))


@models.command()
@click.argument("model")
@settings_options(RUNNING)
def rm(model: str, **flags: Any) -> None:
    """Take MODEL out of the running server; what it is working on is finished."""
    from sie_triton.controller.commands import remove

    remove(settings_of_running(**flags), model)
