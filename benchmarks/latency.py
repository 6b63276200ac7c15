"""Measure latency of single short texts, and throughput of many clients.

Compare the server with and without graphs, a minimal Triton repository written by hand, and calls in process.
"""

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton
from rich.console import Console
from rich.progress import track

from benchmarks import handmade, perf_analyzer
from benchmarks.library_comparison import MINILM, dense_file, grpc_of, serving, tiny_file
from benchmarks.ports import ports_of_a_server
from benchmarks.tables import markdown_table, print_table
from benchmarks.texts import log_normal_texts, texts, write_input_data
from sie_triton.client import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.onnx.graph import Graph
from sie_triton.engines.onnx.session import is_installed
from sie_triton.engines.torch.encoder import TorchEncoder, load_model
from sie_triton.engines.torch.probe import choose_path
from sie_triton.errors import ServerError
from sie_triton.models.weights import locate
from sie_triton.pipeline.worker.graphs import path_of
from sie_triton.records.status import Record, records_of
from sie_triton.server.launch import Server
from sie_triton.settings import Settings, read_settings
from sie_triton.system.host.container import num_processors

MODEL = "bench/minilm"
TINY = "bench/tiny"
NUM_TOKENS = (3, 12, 47, 128)

# Calls of each way per round.
CALLS = 60

# Pause between calls, in seconds: about the time for which other work uses the caches between a client's requests.
PAUSE_S = 0.004

# The number of special tokens in a text, and a word of one token.
SPECIAL_TOKENS, WORD = 2, "time"

TAKEOVER_S = 300.0

# (number of clients, description of the texts' length, function that makes the texts) of a load by many clients.
Crowd = tuple[int, str, Callable[[], list[str]]]
CROWDS: Sequence[Crowd] = (
    (64, "20 to 60 words", partial(texts, 512)),
    (16, "5 to 400 words", partial(log_normal_texts, 512)),
)

PAUSED = "after a pause"

EMPTY = "Triton, three Python steps that compute nothing"
BY_HAND = "Triton by hand: tokenizer, ONNX Runtime, mean"
BY_TORCH, BY_GRAPHS = "server, HTTP, PyTorch alone", "server, HTTP"

Way = Callable[[], Any]
Served = tuple[Settings, str]


def run(*, rounds: int, seconds: float, output: Path | None) -> None:
    """Measure, print the tables and a line of JSON, and write `output` if given."""
    if not is_installed():
        raise ServerError("the latency benchmark needs ONNX Runtime: pip install 'sie-triton[onnx]'")
    perf_analyzer.install()
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        with_graphs = stack.enter_context(minilm(Path(scratch) / "auto", "auto"))
        without = stack.enter_context(minilm(Path(scratch) / "torch", "torch", with_graphs))
        graph = wait_for_graph(with_graphs)
        hand = stack.enter_context(by_hand(Path(scratch) / "hand", graph))
        alone = measure_alone(with_graphs, without, hand, graph, rounds)
        servers = {"graphs": (with_graphs, MODEL), "PyTorch alone": (without, MODEL), BY_HAND: (hand, handmade.PLAIN)}
        crowds = measure_crowds(servers, CROWDS, Path(scratch), rounds, seconds)
    with tempfile.TemporaryDirectory() as scratch, tiny(Path(scratch)) as settings:
        crowds |= measure_crowds({"two layers of 64": (settings, TINY)}, CROWDS[:1], Path(scratch), rounds, seconds)
    told = [table_alone(alone, rounds), table_of_crowds(crowds, rounds)]
    command = f"Printed by `scripts/bench --what latency --rounds {rounds} --seconds {seconds:g}`."
    if output is not None:
        output.write_text("\n".join([*told, command, ""]))
    medians = {name: statistics.median(each) for name, each in crowds.items()}
    print(json.dumps({"alone": alone, "crowds": medians}))


@contextmanager
def minilm(scratch: Path, engine: str, beside: Settings | None = None) -> Iterator[Settings]:
    """Start a server of MiniLM with that engine, and load the model; yield its settings.

    With `beside`, it uses the measurements of that server, and so the same size of sub-batches.
    """
    if beside is not None:
        shutil.copytree(beside.data_dir / "measurements", scratch / "data" / "measurements")
    served = serving(scratch, {MODEL: dense_file(MINILM, 384)}, engine=engine)
    with served as settings, SIEClient(grpc_of(settings)) as client:
        client.encode(MODEL, texts(64))
        yield settings


@contextmanager
def tiny(scratch: Path) -> Iterator[Settings]:
    with (
        serving(scratch, {TINY: tiny_file(scratch)}, engine="auto") as settings,
        SIEClient(grpc_of(settings)) as client,
    ):
        client.encode(TINY, texts(64))
        wait_for_graph(settings, TINY)
        yield settings


@contextmanager
def by_hand(scratch: Path, graph: Path) -> Iterator[Settings]:
    """Start Triton on the repository written by hand, with that graph of MiniLM; yield its settings."""
    settings = read_settings(data_dir=scratch / "data", device="cpu", **ports_of_a_server())
    for model in (handmade.EMPTY, handmade.PLAIN):
        handmade.write(scratch / "repository", model, locate(MINILM, allow_hub=False), graph, num_processors())
    with Server(settings, scratch / "repository") as server:
        server.wait_ready()
        yield settings


def wait_for_graph(settings: Settings, model: str = MODEL) -> Path:
    """Wait until the server has exported and adopted a graph; return its path. ServerError after TAKEOVER_S."""
    ended = time.monotonic() + TAKEOVER_S
    with SIEClient(grpc_of(settings)) as client:
        while time.monotonic() < ended:
            client.encode(model, "hello")
            time.sleep(0.1)
            if record_of(settings, model)["graph_tokens"]:
                (directory,) = filter(Path.is_dir, (settings.data_dir / "graphs").iterdir())
                return path_of(directory, "")
    raise ServerError(f"the server adopted no graph within {TAKEOVER_S:g} s; see {settings.data_dir}/logs")


def record_of(settings: Settings, model: str = MODEL) -> Record:
    (record,) = records_of(settings.status_dir, triton_name(model), "inference")
    return record


def measure_alone(
    with_graphs: Settings, without: Settings, hand: Settings, graph: Path, rounds: int
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return p50 and p99 in ms by way and number of tokens, as medians over the rounds."""
    found: dict[str, dict[int, list[list[float]]]] = {}
    in_process = InProcess(graph)
    with closing_clients(with_graphs, without, hand) as (by_graphs, by_torch, bare):
        ways = {
            n: {
                **in_process.ways(n),
                EMPTY: vector_request(bare, n, handmade.EMPTY),
                BY_HAND: vector_request(bare, n, handmade.PLAIN),
                BY_TORCH: vector_request(by_torch, n),
                BY_GRAPHS: vector_request(by_graphs, n),
            }
            for n in NUM_TOKENS
        }
        for each in ways.values():
            check_alike(each)
        for _ in track(range(rounds), "one at a time", console=Console(stderr=True)):
            for num_tokens, each in ways.items():
                for name, way in each.items():
                    pause = PAUSE_S if name.endswith(PAUSED) else 0
                    found.setdefault(name, {}).setdefault(num_tokens, []).append(timings(way, pause))
    return {
        name: {str(n): (median_of(measured, 50), median_of(measured, 99)) for n, measured in by_tokens.items()}
        for name, by_tokens in found.items()
    }


def check_alike(ways: Mapping[str, Way]) -> None:
    """Raise ServerError if the servers' vectors of the same text differ."""
    vectors = [np.ravel(ways[name]()) for name in (BY_HAND, BY_TORCH, BY_GRAPHS)]
    if not all(np.allclose(each, vectors[0], atol=1e-4) for each in vectors):
        raise ServerError(f"the servers' vectors differ; they begin with {[each[:4] for each in vectors]}")


def median_of(rounds: Sequence[Sequence[float]], percentile: float) -> float:
    return statistics.median(float(np.percentile(each, percentile)) for each in rounds)


def timings(way: Way, pause_s: float) -> list[float]:
    """Return the milliseconds of each call, after a warm-up call."""
    way()
    taken = []
    for _ in range(CALLS):
        time.sleep(pause_s)
        started = time.perf_counter()
        way()
        taken.append(1000 * (time.perf_counter() - started))
    return taken


@contextmanager
def closing_clients(*settings: Settings) -> Iterator[list[triton.InferenceServerClient]]:
    clients = [triton.InferenceServerClient(f"{each.host}:{each.http_port}") for each in settings]
    yield clients
    for client in clients:
        client.close()


class InProcess:
    """MiniLM's forward pass for token ids, in three ways."""

    def __init__(self, graph: Path) -> None:
        import torch
        from transformers import AutoModel

        directory = locate(MINILM, allow_hub=False)
        self._library = AutoModel.from_pretrained(directory).eval()
        self._encoder = TorchEncoder(load_model(directory, torch.float32, "cpu"))
        choose_path(self._encoder, 256, Measurements())
        self._graph = Graph(graph, torch.get_num_threads(), is_causal=False, max_length=512)

    def ways(self, num_tokens: int) -> dict[str, Way]:
        import torch

        ids, lengths = np.full(num_tokens, 2051, np.int32), np.array([num_tokens], np.int32)
        types = np.zeros_like(ids)

        @torch.inference_mode()
        def library() -> object:
            return self._library(input_ids=torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state

        by_graph = partial(self._graph.hidden_states, ids, lengths, lengths, types, np.arange(num_tokens))
        return {
            "transformers, in process": library,
            "packed path, in process": partial(self._encoder.packed, ids, lengths, lengths, types),
            "ONNX Runtime, in process": by_graph,
            f"ONNX Runtime, in process, {PAUSED}": by_graph,
        }


def vector_request(client: triton.InferenceServerClient, num_tokens: int, model: str = MODEL) -> Way:
    """Return a function that requests the vector of a text of `num_tokens` tokens."""
    text = " ".join([WORD] * (num_tokens - SPECIAL_TOKENS))
    given = triton.InferInput("text", [1], "BYTES")
    given.set_data_from_numpy(np.array([text.encode()], np.object_))
    wanted = [triton.InferRequestedOutput("dense")]
    return lambda: client.infer(triton_name(model), [given], outputs=wanted).as_numpy("dense")


def measure_crowds(
    servers: Mapping[str, Served], crowds: Sequence[Crowd], scratch: Path, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Return the texts/s of each server under each load, by round; servers take turns."""
    rates: dict[str, list[float]] = {}
    for number, (clients, words, made) in enumerate(crowds):
        data = scratch / f"{number}.json"
        write_input_data(data, made())
        for _ in track(range(rounds), f"{clients} clients", console=Console(stderr=True)):
            for name, (settings, model) in servers.items():
                load = perf_analyzer.measure(triton_name(model), grpc_of(settings), data, clients, seconds)
                rates.setdefault(f"{clients} clients, {words}, {name}", []).append(load["per_second"])
    return rates


def table_alone(alone: Mapping[str, Mapping[str, tuple[float, float]]], rounds: int) -> str:
    title = f"MiniLM, fp32, one text at a time: p50 / p99 in ms, medians of {rounds} rounds of {CALLS} calls"
    title += f"; pauses take {1000 * PAUSE_S:g} ms"
    rows = [[name, *(f"{p50:.1f} / {p99:.1f}" for p50, p99 in by_tokens.values())] for name, by_tokens in alone.items()]
    return shown(title, ["", *(f"{n} tokens" for n in NUM_TOKENS)], rows)


def table_of_crowds(crowds: Mapping[str, list[float]], rounds: int) -> str:
    title = f"Many clients, one text per request: texts/s, medians of {rounds} rounds, servers in turns"
    return shown(title, ["", "texts/s"], [[name, f"{statistics.median(each):.0f}"] for name, each in crowds.items()])


def shown(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Print the table, and return it as Markdown."""
    print_table(title, head, rows)
    return f"{title}\n\n{markdown_table(head, rows)}"
