"""Implementation of `sie-triton cluster add` and `rm`, and of `sie-triton status` for a cluster."""

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from rich.console import RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sie_triton.client.address import Address
from sie_triton.cluster.up import CLUSTER_DIR, CONFIG_DIR
from sie_triton.controller import status_table
from sie_triton.controller.commands import ADMIN, CLIENT, OWN_DIRECTORY, Where, fetch
from sie_triton.controller.token import find_token
from sie_triton.errors import ServerError
from sie_triton.settings import LOOPBACK, Settings
from sie_triton.system.printing import Console

MODELS = "/v1/configs/models"

# Timeout of an answer, in seconds.
ANSWER_S = 30.0

DOOR = Where("door or gateway", "--url", CLIENT)


def show(door: Address, *, watch: bool = False, as_json: bool = False) -> None:
    """Print what a door or a gateway says of its models or workers; `watch` keeps the table up to date."""
    console = Console()
    if as_json:
        console.print_data(_status(door)[0])
    elif not watch:
        console.print(_table(door, console.width))
    else:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                live.update(_table(door, console.width), refresh=True)
                time.sleep(1.0)


def _table(door: Address, width: int) -> RenderableType:
    told, is_cluster = _status(door)
    return table_of(told) if is_cluster else status_table.of_door(told, width)


def _status(door: Address) -> tuple[Any, bool]:
    """Return the health of a gateway, or the status of a door of one server, and True for a gateway."""
    health = _ask(door, "/health")
    is_cluster = health.get("type") == "gateway"
    told = health if is_cluster else _ask(door, "/status")
    if not is_cluster and "memory" not in told:
        raise ServerError(DOOR.is_not(str(door)))
    return told, is_cluster


def _ask(door: Address, path: str) -> Any:
    tls = door.tls_context() if door.is_secure else None
    found = fetch(f"{door}{path}", DOOR, door.token, ANSWER_S, tls=tls)
    if not isinstance(found, dict):
        raise ServerError(DOOR.is_not(str(door)))
    return found


def add(settings: Settings, model_file: str, pool: str) -> None:
    """Give a model file to all workers, or to those of a pool."""
    done = _change(settings, f"{MODELS}{_of_pool(pool)}", "POST", model_file.encode())
    what = f"epoch {done['epoch']}" if done["changed"] else f"unchanged since epoch {done['epoch']}"
    Console().print(f"{done['model']}: {what}")


def remove(settings: Settings, model: str, pool: str) -> None:
    done = _change(settings, f"{MODELS}/{quote(model)}{_of_pool(pool)}", "DELETE")
    Console().print(f"{done['model']}: removed, epoch {done['epoch']}")


def table_of(health: Mapping[str, Any]) -> RenderableType:
    """Return the table of workers for the answer of GET /health at a gateway."""
    epoch = health["config_epoch"]
    table = Table(title="SIE cluster", caption=_summary(health))
    for name in ("worker", "pool", "machine", "state", "requests", "model files", "models in memory"):
        table.add_column(name, justify="right" if name == "requests" else "left", overflow="fold")
    for each in health["workers"]:
        table.add_row(
            each["name"],
            each["pool"],
            each["machine_profile"],
            Text("ready", style="green") if each["healthy"] else Text("not ready", style="red"),
            str(each["queue_depth"] or ""),
            _files(each, epoch),
            _names(each["loaded_models"]),
        )
    return table


def _summary(health: Mapping[str, Any]) -> str:
    ready = sum(each["healthy"] for each in health["workers"])
    return f"{ready} of {len(health['workers'])} workers are ready; epoch of the model files: {health['config_epoch']}"


def _files(worker: Mapping[str, Any], epoch: int) -> Text:
    if worker["refused_models"]:
        return Text(f"refuses {_names(worker['refused_models'])}", style="red")
    if worker["config_epoch"] < epoch:
        return Text(f"at epoch {worker['config_epoch']}", style="yellow")
    return Text("up to date")


def _names(names: list[str]) -> str:
    shown, rest = names[:5], names[5:]
    return ", ".join(shown) + (f" and {len(rest)} more" if rest else "")


def _of_pool(pool: str) -> str:
    return f"?{urlencode({'pool': pool})}" if pool else ""


def _change(settings: Settings, path: str, method: str, body: bytes | None = None) -> Any:
    url = settings.config_service_url or f"http://{LOOPBACK}:{settings.config_port}"
    of_cluster_up = settings.data_dir / CLUSTER_DIR / CONFIG_DIR
    token = find_token(of_cluster_up, settings.admin_token) or find_token(settings.data_dir, "")
    where = Where("config service", "--config-service-url", ADMIN, OWN_DIRECTORY)
    return fetch(f"{url}{path}", where, token, ANSWER_S, method, body)
