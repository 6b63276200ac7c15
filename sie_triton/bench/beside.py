"""The server beside a library in this process: each its way through the same items, in turns, and a table of both."""

import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from sie_triton.bench.lanes import median_ratio
from sie_triton.bench.ports import ports_of_a_server
from sie_triton.client import SIEClient
from sie_triton.render.build import write_repository
from sie_triton.server.launch import Server
from sie_triton.settings import read_settings

Answer = Callable[[Any], Any]


@contextmanager
def served(scratch: Path, model: str, file: Mapping[str, Any], **given: Any) -> Iterator[SIEClient]:
    """A client of a server of `model` by a model file with these keys; `given` are settings."""
    models = scratch / "models"
    models.mkdir()
    (models / "model.yaml").write_text(yaml.safe_dump({"sie_id": model, **file}))
    settings = read_settings(
        **{"data_dir": scratch / "data", "models_dir": models, "device": "cpu", **ports_of_a_server(), **given}
    )
    write_repository(scratch / "repository", settings, [model], runtime=settings.runtime)
    with Server(settings, scratch / "repository") as server:
        server.wait_ready()
        with SIEClient(f"{settings.host}:{settings.grpc_port}") as client:
            yield client


def one_at_a_time(answer: Answer) -> Answer:
    """torch computes on all cores: more at once would only be slower."""
    lock = Lock()

    def locked(item: Any) -> Any:
        with lock:
            return answer(item)

    return locked


def all_of(pool: ThreadPoolExecutor, answer: Answer, items: Sequence[Any]) -> None:
    list(pool.map(answer, items))


def report(title: str, unit: str, rates: Mapping[str, list[float]], command: str) -> str:
    """Print a row for each way, and return them as Markdown; `rates` by name, the one to compare first."""
    ours = next(iter(rates.values()))
    rows = [
        [name, f"{statistics.median(each):.1f} {unit}", f"{median_ratio(ours, each):.2f} x"]
        for name, each in rates.items()
    ]
    table = Table("", "", "first ÷ this", title=title)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    head = f"{title} ({platform.machine()}). Printed by `{command}`."
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "", "| | | first ÷ this |", "|---|---|---|", *lines, ""])
