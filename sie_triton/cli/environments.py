"""`sie-triton env`: the venvs that workers of some models run in."""

from typing import Any

import click

from sie_triton.cli.options import settings_options
from sie_triton.settings import read_settings


@click.group()
def env() -> None:
    """Make, list and remove worker environments: venvs for models whose library conflicts with the server's.

    A model file names one with `environment: NAME`. The model's worker runs there; all else stays as it is.
    """


@env.command()
@click.argument("name")
@click.argument("packages", metavar="PACKAGE...", nargs=-1, required=True)
@click.option("--python", default="", metavar="PATH", help="interpreter to make it with; default: this one")
@settings_options(["environments_dir"])
def add(name: str, packages: tuple[str, ...], python: str, **flags: Any) -> None:
    """Make environment NAME with each PACKAGE, as pip takes them.

    This package and numpy come with it. A model of ours needs 'sie-triton[server]' there, which brings torch; a family
    of your own needs the package that it is in.
    """
    from sie_triton.environments import commands

    commands.add(read_settings(**flags).environments_dir, name, packages, python)


@env.command()
@settings_options(["environments_dir", "models_dir"])
def ls(**flags: Any) -> None:
    """List environments, the models in --models-dir that name them, and what is wrong with them."""
    from sie_triton.catalog import select
    from sie_triton.environments import commands

    settings = read_settings(**flags)
    users: dict[str, list[str]] = {}
    for model in select([], settings.models_dir, allow_hub=False).models:
        if model.environment:
            users.setdefault(model.environment, []).append(model.sie_id)
    commands.show(settings.environments_dir, users)


@env.command()
@click.argument("name")
@settings_options(["environments_dir"])
def rm(name: str, **flags: Any) -> None:
    """Remove environment NAME. Start a server again that uses it."""
    from sie_triton.environments import commands

    commands.remove(read_settings(**flags).environments_dir, name)
