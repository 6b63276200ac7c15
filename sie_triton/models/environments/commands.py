"""The commands of `sie-triton env`."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from sie_triton.errors import LoadError
from sie_triton.models.environments import make
from sie_triton.models.environments.venv import Venv, find, try_out
from sie_triton.system.printing import Console, say


def add(environments: Path, name: str, packages: Sequence[str], python: str) -> None:
    """Create an environment and show pip's progress: next to a spinner on a terminal, otherwise line by line."""
    console = Console(stderr=True)
    text = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis"), markup=False)
    with Progress(SpinnerColumn(), TimeElapsedColumn(), text, console=console, transient=True) as progress:
        task = progress.add_task("")

        def say(line: str) -> None:
            progress.update(task, description=line)
            if not console.is_terminal:
                console.print_line(line)

        venv = make.add(environments, name, packages, python, say)
    say(f"{venv.directory}: Python {venv.python_version}, {_size(venv)}")
    say(f"to use it, write into a model file: environment: {name}")


def remove(environments: Path, name: str) -> None:
    make.remove(environments, name)
    say(f"{name}: removed; workers that already run in it continue")


def show(environments: Path, users: Mapping[str, Sequence[str]]) -> None:
    """Print a table of environments, then their problems; `users` maps environments to the models that use them."""
    known = make.names(environments)
    table = Table("name", "Python", "sie_triton", "packages", Column("size", justify="right"), "models")
    problems = []
    for name in known:
        try:
            try_out(find(environments, name))
        except (LoadError, ValueError) as exc:
            problems.append(str(exc))
        table.add_row(*map(Text, (name, *_facts(environments / name), " ".join(users.get(name, ())))))
    if known:
        Console().print(table)
    else:
        say(f"no environments in {environments}; create one with: sie-triton env add NAME PACKAGE...")
    missing = sorted(users.keys() - set(known))
    problems += [f"environment {name}: does not exist, but is needed by {', '.join(users[name])}" for name in missing]
    for problem in problems:
        say(problem, style="yellow")


def _facts(directory: Path) -> tuple[str, str, str, str]:
    try:
        venv = Venv.read(directory)
    except (OSError, ValueError):
        return "", "", "", ""
    return venv.python_version, make.sie_triton_version(venv), " ".join(venv.packages), _size(venv)


def _size(venv: Venv) -> str:
    """Return the size of the environment's files, in MiB."""
    paths = (os.path.join(top, file) for top, _, files in os.walk(venv.directory) for file in files)
    return f"{sum(os.lstat(path).st_size for path in paths) / 2**20:,.0f} MiB"
