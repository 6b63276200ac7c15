"""Compare the server with sentence-transformers: interleaved rounds, medians, a table and one JSON line."""

import json
import platform
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks import perf_analyzer
from benchmarks.ports import ports_of_a_server
from benchmarks.reference import Reference
from benchmarks.tables import markdown_table, print_table
from benchmarks.texts import texts, write_input_data
from sie_triton.client import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.pipeline.render.build import write_repository
from sie_triton.server.launch import Server
from sie_triton.settings import Settings, read_settings
from sie_triton.system.host.container import num_processors

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
NUM_TEXTS = 512

ROWS = {
    "peak": "fp32 matrix-product peak, GFLOP/s",
    "sentence_transformers": "sentence-transformers in process, length-sorted, texts/s",
    "packed": "our packed forward in process, texts/s",
    "server": "server, {clients} clients, one text per request, texts/s",
    "forward_ms": "in-process forward of one text, p50 ms",
    "one_client_ms": "server, 1 client, p50 ms",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians over rounds, and the median of the rounds' ratios."""

    medians: Mapping[str, float]
    server_ratio: float
    clients: int

    @classmethod
    def of(cls, rounds: list[dict[str, float]], clients: int) -> "Comparison":
        medians = {name: statistics.median(each[name] for each in rounds) for name in ROWS}
        ratio = statistics.median(each["server"] / each["sentence_transformers"] for each in rounds)
        return cls(medians, ratio, clients)

    def rows(self) -> list[tuple[str, str]]:
        named = [(ROWS[n].format(clients=self.clients), f"{value:.1f}") for n, value in self.medians.items()]
        return [*named, ("server ÷ sentence-transformers", f"{self.server_ratio:.2f} ×")]

    def to_json(self) -> str:
        document = {"model": MODEL, "clients": self.clients, **self.medians, "server_ratio": self.server_ratio}
        return json.dumps({name: round(v, 3) if isinstance(v, float) else v for name, v in document.items()})

    def to_markdown(self, rounds: int, seconds: float) -> str:
        command = f"scripts/bench --rounds {rounds} --seconds {seconds:g} --clients {self.clients}"
        head = [
            f"{MODEL}, fp32, texts of 20 to 60 words, medians of {rounds} interleaved rounds",
            f"({_machine()}). Printed by `{command}`.",
            "The last row is the median of the rounds' ratios, not the ratio of the medians above it.",
        ]
        return "\n".join([*head, "", markdown_table(HEAD, self.rows())])


HEAD = ("measured in one run", "median")


def run(*, rounds: int, seconds: float, clients: int, output: Path | None) -> None:
    """Measure, print the table and the JSON line, and write `output` if given."""
    console = Console(stderr=True)
    perf_analyzer.install()
    with tempfile.TemporaryDirectory() as scratch:
        measured = list(_rounds(Path(scratch), rounds, seconds, clients, console))
    report = Comparison.of(measured, clients)
    print_table(f"{MODEL}, fp32, 20–60 words, {rounds} rounds", HEAD, report.rows())
    if output is not None:
        output.write_text(report.to_markdown(rounds, seconds))
    print(report.to_json())


def _rounds(scratch: Path, rounds: int, seconds: float, clients: int, console: Console) -> Iterator[dict[str, float]]:
    items = texts(NUM_TEXTS)
    (scratch / "texts.json").write_text(json.dumps(items))
    write_input_data(scratch / "input.json", items)
    settings = _settings(scratch)
    address, name = f"{settings.host}:{settings.grpc_port}", triton_name(MODEL)
    with _serving(settings, scratch, items), closing(Reference(MODEL, scratch / "texts.json")) as reference:
        for _ in track(range(rounds), "measuring", console=console):
            round_ = {name: reference.measure(name) for name in ("peak", "sentence_transformers", "packed")}
            load = perf_analyzer.measure(name, address, scratch / "input.json", clients, seconds)
            single = perf_analyzer.measure(name, address, scratch / "input.json", 1, 3)
            yield {
                **round_,
                "server": load["per_second"],
                "forward_ms": reference.measure("forward_ms"),
                "one_client_ms": single["p50_ms"],
            }


@contextmanager
def _serving(settings: Settings, scratch: Path, warm_up: list[str]) -> Iterator[None]:
    repository = scratch / "model_repository"
    write_repository(repository, settings, [MODEL], runtime=settings.runtime)
    with Server(settings, repository) as server:
        server.wait_ready()
        with SIEClient(f"{settings.host}:{settings.grpc_port}") as client:
            client.encode(MODEL, warm_up[:64])
        yield


def _settings(scratch: Path) -> Settings:
    return read_settings(data_dir=scratch / "data", device="cpu", engine="torch", **ports_of_a_server())


def _machine() -> str:
    return f"{num_processors()} CPU cores, {platform.machine()}, client and server on the same cores"
