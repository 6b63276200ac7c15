"""Implementation of `sie-triton lora`: list and change the LoRA adapters of a model through a running controller."""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rich.table import Table
from rich.text import Text

from sie_triton.controller.commands import ask, path_of
from sie_triton.controller.status_table import STYLES
from sie_triton.models.known_loras import PATHS
from sie_triton.settings import Settings
from sie_triton.system.printing import Console, say


def show(settings: Settings, model: str, *, as_json: bool = False) -> None:
    answer = ask(settings, _path(model))
    if as_json:
        Console().print_data(answer)
    elif answer["loras"]:
        Console().print(table(answer))
    elif answer["takes_loras"]:
        say(f"{answer['model']}: no adapters; add one with sie-triton lora add {answer['model']} NAME SOURCE")
    else:
        say(f"{answer['model']}: models of its family take no LoRA adapters")


def add(settings: Settings, model: str, name: str, source: str) -> None:
    body = {"name": name, "source": located(source)}
    done = ask(settings, _path(model), "PUT", json.dumps(body).encode())
    say(f"{done['model']}: {name}: {done['done']}, from {body['source']}")


def remove(settings: Settings, model: str, name: str) -> None:
    done = ask(settings, f"{_path(model)}/{quote(name, safe='')}", "DELETE")
    say(f"{done['model']}: {name}: {done['done']}")


def located(source: str) -> str:
    """Return a directory as an absolute path, because the server runs in another one; return a hub id unchanged."""
    path = Path(os.path.expanduser(source))
    return str(path.absolute()) if source.startswith(PATHS) or path.is_dir() else source


def table(answer: Any) -> Table:
    """Return the table of a model's adapters, in the order of the response; sizes only of those in memory."""
    made = Table(title=f"LoRA adapters of {answer['model']}")
    for name in ("name", "location", "origin", "state"):
        made.add_column(name, overflow="fold")
    for name in ("memory", "last used"):
        made.add_column(name, justify="right")
    for lora in answer["loras"]:
        made.add_row(
            lora["name"],
            lora["source"],
            lora["from"],
            Text(": ".join(filter(None, (lora["state"], lora["failure"]))), style=STYLES[lora["state"]]),
            f"{lora['memory_bytes'] / 2**20:.1f} MiB" if lora["memory_bytes"] else "",
            "never" if lora["idle_s"] is None else f"{lora['idle_s']:.0f} s ago",
        )
    return made


def _path(model: str) -> str:
    return f"{path_of(model)}/loras"
