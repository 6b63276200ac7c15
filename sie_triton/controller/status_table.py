"""Format the controller's JSON as the table of `sie-triton status` and the lines below it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sie_triton.records.serving_file import fault_lines
from sie_triton.system.host.footprint import gib
from sie_triton.system.printing import Console

STYLES = {"resident": "green", "loading": "yellow", "failed": "red", "dead": "red", "cold": "dim"}
STYLES |= {"loaded": STYLES["resident"], "available": STYLES["cold"]}  # as a door names them

# Columns dropped in this order if the terminal is too narrow: names stay whole, so that users can copy them.
DISPENSABLE = ("share", "in progress", "loras", "engine", "device", "last used", "memory")


Column = Sequence[RenderableType]


def table_of(answer: Any, width: int) -> RenderableType:
    """Return the table of models, with a line about the memory of each device below it.

    The table is at most `width` characters wide if the names allow it. Models in memory come first; models are sorted
    by name. Columns without values are left out.
    """
    return _fitted(_columns(answer), width, answer["memory"])


def of_door(status: Any, width: int) -> RenderableType:
    """Return the table for the status that a door sends, which names states as SIE does."""
    models = sorted(status["models"], key=lambda model: (model["state"] == "available", model["name"]))
    columns: dict[str, Column] = {
        "model": [Text(model["name"]) for model in models],
        "state": [Text(model["state"], style=STYLES.get(model["state"], "")) for model in models],
        "device": _devices(models, status["gpus"]),
        "memory": [gib(each) if (each := model["memory_bytes"]) else "" for model in models],
        "in progress": [str(model["queue_depth"] or "") for model in models],
    }
    memory = status["memory"] and status["memory"] | {"devices": status["gpus"]}
    return _fitted(columns, width, memory)


def _fitted(columns: Mapping[str, Column], width: int, memory: Mapping[str, Any]) -> RenderableType:
    columns = {name: cells for name, cells in columns.items() if any(cells)}
    made = _table(columns)
    for name in DISPENSABLE:
        if _width(made) > width:
            columns.pop(name, None)
            made = _table(columns)
    return Group(made, *(Text(line, style="italic") for line in memory_lines(memory)))


def faults(answer: Any) -> Iterator[str]:
    """Yield a line for each failed model, and for each model file whose current content is not served."""
    for model in answer["models"]:
        if model["failure"]:
            message = model.get("failure_message")
            yield f"{model['model']}: {model['failure']}" + (f": {message}" if message else "")
    yield from fault_lines(answer["problems"], (model.get("source", "") for model in answer["models"]))


def memory_lines(memory: Mapping[str, Any]) -> list[str]:
    """Return a line about the memory of each device; one that is empty if nothing is known."""
    devices = memory.get("devices", [])
    if len(devices) > 1:
        return [f"{each['device']}: {memory_line(each)}" for each in devices]
    return [memory_line(memory) if memory else ""]


def memory_line(memory: Mapping[str, Any]) -> str:
    share = memory["used_bytes"] / max(1, memory["limit_bytes"])
    return f"{gib(memory['used_bytes'])} of {gib(memory['limit_bytes'])} used ({share:.0%}, {memory['source']})"


def engine_of(model: Mapping[str, Any]) -> str:
    """
    >>> engine_of({"engine": "torch", "graph_tokens": 48})
    'torch, onnx up to 48'
    """
    graph = f", onnx up to {model['graph_tokens']}" if model["graph_tokens"] else ""
    return f"{model['engine']}{graph}" if model["engine"] else ""


def _columns(answer: Any) -> dict[str, Column]:
    """Return the cells of all rows by column; a cell without a value is falsy."""
    models = sorted(answer["models"], key=lambda model: (model["state"] == "cold", model["model"]))
    devices = answer["memory"].get("devices", [])
    of_device, limit = {each["device"]: each["limit_bytes"] for each in devices}, answer["memory"]["limit_bytes"]
    limits = [max(1, of_device.get(model.get("device"), limit)) for model in models]
    used = [model["memory_bytes"] for model in models]
    return {
        "model": [Text(model["model"]) for model in models],
        "state": [Text(model["state"], style=STYLES[model["state"]]) for model in models],
        "engine": [engine_of(model) for model in models],
        "device": _devices(models, devices),
        "memory": [gib(each) if each else "" for each in used],
        "last used": ["never" if m["idle_s"] is None else f"{m['idle_s']:.0f} s ago" for m in models],
        "in progress": [str(model["pending"] or "") for model in models],
        "loras": [str(model["num_loras"] or "") for model in models],
        "share": [ProgressBar(most, each, width=20) if each else "" for most, each in zip(limits, used, strict=True)],
    }


def _devices(models: Sequence[Mapping[str, Any]], devices: Sequence[Any]) -> Column:
    """Return the devices of each model and its copies; nothing if there is only one."""
    if len(devices) < 2:
        return [""] * len(models)
    return [", ".join(filter(None, (each.get("device"), *each.get("copies", ())))) for each in models]


def _table(columns: Mapping[str, Column]) -> Table:
    made = Table(title="SIE on Triton")
    for name in columns:
        is_number = name in ("memory", "last used", "in progress", "loras")
        made.add_column(name, justify="right" if is_number else "left", overflow="fold")
    for row in zip(*columns.values(), strict=True):
        made.add_row(*row)
    return made


def _width(table: Table) -> int:
    """Return the natural width of the table, in characters."""
    console = Console(width=10_000)
    return console.measure(table).maximum
