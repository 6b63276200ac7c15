"""`sie-triton env`: virtual environments for the workers of some models."""

from typing import Any

import click

from sie_triton.cli.options import read_model_settings, settings_options
from sie_triton.settings import read_settings


@click.group()
def env() -> None:
    """Make, list and remove worker environments: venvs for models whose libraries conflict with the server's.

    A model file names its environment with `environment: NAME`. Only the model's worker runs in it.
    """


@env.command()
@click.argument("name")
@click.argument("packages", metavar="PACKAGE...", nargs=-1, required=True)
@click.option("--python", default="", metavar="PATH", help="Python interpreter of the environment; default: this one")
@settings_options(["environments_dir"])
def add(name: str, packages: tuple[str, ...], python: str, **flags: Any) -> None:
    """Make the environment NAME and install each PACKAGE with pip.

    This package and numpy are always included. Built-in families also need 'sie-triton[server]', which includes torch;
    a family of your own needs the package that contains it.
    """
    from sie_triton.models.environments import commands

    commands.add(read_settings(**flags).environments_dir, name, packages, python)


@env.command()
@settings_options(["environments_dir", "models_dir"])
def ls(**flags: Any) -> None:
    """List environments, the models in --models-dir that use them, and their problems."""
    from sie_triton.models.catalog import select
    from sie_triton.models.environments import commands

    settings = read_model_settings(**flags)
    users: dict[str, list[str]] = {}
    for model in select([], settings.models_dir, allow_hub=False).models:
        if model.environment:
            users.setdefault(model.environment, []).append(model.sie_id)
    commands.show(settings.environments_dir, users)


@env.command()
@click.argument("name")
@settings_options(["environments_dir"])
def rm(name: str, **flags: Any) -> None:
    """Remove the environment NAME. Restart a server that uses it."""
    from sie_triton.models.environments import commands

    commands.remove(read_settings(**flags).environments_dir, name)
