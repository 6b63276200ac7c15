"""The server beside sentence-transformers, and beside a Triton model written by hand, which take turns."""

import statistics
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as triton

from benchmarks import handmade, perf_analyzer
from benchmarks.gpu_check.scope import CannotRun, Finding, Plan, Row
from benchmarks.gpu_check.served import LOAD_S, missing_requirements, served
from benchmarks.gpu_check.shapes import save
from benchmarks.gpu_check.work import cosine
from benchmarks.lanes import timed
from benchmarks.ports import ports_of_a_server
from benchmarks.texts import write_input_data
from sie_triton.contract.names import triton_name
from sie_triton.contract.tensors import TIMING_FIELDS
from sie_triton.errors import ServerError
from sie_triton.server.launch import Server
from sie_triton.settings import read_settings

ALIKE = 0.999

OURS, IN_GROUPS = "server", "server, batches of 16 requests"
BY_HAND, IN_PROCESS = "a Triton model by hand, transformers", "sentence-transformers, in process"

# Smaller batches let the steps work side by side, where larger ones make them take turns.
GROUP = ("--max-batch-requests", "16")

# (number of clients, number of texts per request)
LOADS = ((1, 1), (16, 1), (64, 1), (64, 8), (16, 64))
DRY_LOADS = ((2, 1), (2, 4))

NUM_TEXTS, SINGLE_TEXTS, MIN_WORDS, MAX_WORDS, IN_PROCESS_BATCH = 4096, 100, 20, 60, 64
ROUNDS, SECONDS = 2, 3.0


def measure(name: str, plan: Plan) -> Iterator[Finding]:
    """Measure texts/s and latency of the servers under each load, and texts/s of the library in this process."""
    if lacking := missing_requirements() or _missing_load_generator():
        raise CannotRun(lacking)
    texts = words(64 if plan.is_dry else NUM_TEXTS)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        weights = save(name, plan, root)
        with (
            served(plan, [weights], root / "data") as ours,
            served(plan, [weights], root / "data-groups", *GROUP) as groups,
            by_hand(plan, weights, root / "by-hand") as port,
        ):
            servers = {
                OURS: (f"127.0.0.1:{ours.ports['grpc_port']}", weights.name),
                IN_GROUPS: (f"127.0.0.1:{groups.ports['grpc_port']}", weights.name),
                BY_HAND: (f"127.0.0.1:{port}", triton_name(handmade.LIBRARY)),
            }
            vectors = {server: first_vectors(*each, texts[:8]) for server, each in servers.items()}
            alike = min(cosine(vectors[BY_HAND], vectors[server]) for server in (OURS, IN_GROUPS))
            row = {"load": "cosine of their vectors", "subject": f"{alike:.5f}", "passed": alike >= ALIKE}
            yield _row(name, f"cosine of the servers' vectors: {alike:.5f}", row)
            yield from in_process(name, plan, weights, texts)
            for clients, size in DRY_LOADS if plan.is_dry else LOADS:
                data = root / f"{size}.json"
                write_input_data(data, list(texts), size=size)
                yield from under(name, clients, size, servers, data)
                if clients > 1 and size == 1:
                    yield from times_beside(name, clients, servers, texts, data)


def under(name: str, clients: int, size: int, servers: dict[str, tuple[str, str]], data: Path) -> Iterator[Finding]:
    """Measure the servers in turns under one load, whose texts are in `data`; return a row for each."""
    rounds = [{server: load(*each, clients, data) for server, each in servers.items()} for _ in range(ROUNDS)]
    for server in servers:
        figures = {key: statistics.median(each[server][key] for each in rounds) for key in rounds[0][server]}
        ratio = statistics.median(each[OURS]["per_second"] / each[server]["per_second"] for each in rounds)
        row = {
            "load": f"{clients} x {size}",
            "subject": server,
            "texts_per_s": size * figures["per_second"],
            "p50_ms": figures["p50_ms"],
            "p99_ms": figures["p99_ms"],
            "busy": figures["busy"],
            "ours": ratio,
        }
        line = f"{clients} client(s), {size} text(s) a request, {server}: {row['texts_per_s']:.0f} texts/s"
        yield _row(name, f"{line}, p50 {row['p50_ms']:.2f} ms, step busy {row['busy']:.0%}", row)


def load(address: str, model: str, clients: int, data: Path) -> dict[str, float]:
    """Measure a server under one load; `busy`: share of the time that its step computes, the start included."""
    before, began = computed_s(address, model), monotonic()
    figures = perf_analyzer.measure(model, address, data, clients, SECONDS)
    return {**figures, "busy": (computed_s(address, model) - before) / (monotonic() - began)}


def computed_s(address: str, model: str) -> float:
    """Return for how long the model's inference step has computed, in seconds, by Triton's statistics."""
    step = model if model == triton_name(handmade.LIBRARY) else f"{model}-inference"
    with triton.InferenceServerClient(address) as client:
        (of_step,) = client.get_inference_statistics(step).model_stats
    computed_ns = sum(int(batch.compute_infer.ns) for batch in of_step.batch_stats)
    return computed_ns / 1e9


def times_beside(
    name: str, clients: int, servers: dict[str, tuple[str, str]], texts: Sequence[str], data: Path
) -> Iterator[Finding]:
    """Ask beside a load of single texts, and return where the time of a request to our servers goes: medians, in ms."""
    for server in (OURS, IN_GROUPS):
        address, model = servers[server]
        taken: list[npt.NDArray[np.float32]] = []
        with ThreadPoolExecutor(1) as pool, triton.InferenceServerClient(address) as client:
            load = pool.submit(perf_analyzer.measure, model, address, data, clients, SECONDS)
            while not load.done():
                taken.append(client.infer(model, [given(texts[:1], [1])]).as_numpy("timing_ms"))
            load.result()
        # Those before the load begins and after it ends are the fast ones.
        by_total = sorted(taken, key=lambda times: float(times[TIMING_FIELDS.index("total")]))
        medians = np.median(by_total[len(taken) // 2 :], 0).tolist()
        row = dict(zip(TIMING_FIELDS, medians, strict=True))
        line = ", ".join(f"{field} {value:.2f}" for field, value in row.items())
        named = {"model": name, "load": f"{clients} x 1", "subject": server}
        yield Finding("steps", f"{name}, {clients} client(s), {server}, ms: {line}", named | row)


def in_process(name: str, plan: Plan, weights: Path, texts: Sequence[str]) -> Iterator[Finding]:
    """Measure the library in this process: all texts at once, which it sorts by length, and single texts."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as exc:
        yield Finding("notes", f"sentence-transformers: {exc}", {"note": f"sentence-transformers: {exc}"})
        return
    precision = "float16" if plan.is_gpu else "float32"
    library = SentenceTransformer(str(weights), device=plan.device, model_kwargs={"dtype": precision})
    # Each text twice, because cuDNN prepares for a length when it is new.
    singles = [[text] for text in texts[:SINGLE_TEXTS]] * 2
    for load, asked in (("1 text at a time", singles), (f"{len(texts)} texts at once", [list(texts)] * 6)):
        seconds = [timed(partial(library.encode, each, batch_size=IN_PROCESS_BATCH)) for each in asked]
        took = statistics.median(seconds[len(asked) // 2 :])
        row = {"load": load, "subject": IN_PROCESS, "texts_per_s": len(asked[0]) / took, "p50_ms": 1000 * took}
        yield _row(name, f"{load}, {IN_PROCESS}: {row['texts_per_s']:.0f} texts/s, {1000 * took:.2f} ms", row)


@contextmanager
def by_hand(plan: Plan, weights: Path, scratch: Path) -> Iterator[int]:
    """Serve the model written by hand; yield its gRPC port."""
    scratch.mkdir()
    precision = "float16" if plan.is_gpu else "float32"
    handmade.write_library(scratch / "repository", weights, plan.device, precision)
    settings = read_settings(data_dir=scratch / "data", device=plan.device, fork_stubs=False, **ports_of_a_server())
    with Server(settings, scratch / "repository") as server:
        server.wait_ready()
        yield settings.grpc_port


def first_vectors(address: str, model: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
    """Request vectors, float32 [texts, dim]; the first request waits for the weights."""
    shape = [len(texts)] if model != triton_name(handmade.LIBRARY) else [1, len(texts)]
    with triton.InferenceServerClient(address) as client:
        answer = client.infer(model, [given(texts, shape)], client_timeout=LOAD_S).as_numpy("dense")
    vectors: npt.NDArray[np.float32] = answer.reshape(len(texts), -1)
    return vectors


def given(texts: Sequence[str], shape: Sequence[int]) -> triton.InferInput:
    tensor = triton.InferInput("text", shape, "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() for text in texts], np.object_).reshape(shape))
    return tensor


def words(count: int) -> list[str]:
    """Return texts of 20 to 60 words, each a token."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(MIN_WORDS, MAX_WORDS, count, endpoint=True)
    return [" ".join(f"w{word}" for word in rng.integers(1000, 30000, length)) for length in lengths]


def _row(name: str, line: str, row: Row) -> Finding:
    return Finding("rivals", f"{name}, {line}", {"model": name, **row})


def _missing_load_generator() -> str:
    try:
        perf_analyzer.install()
    except ServerError as exc:
        return str(exc).splitlines()[0]
    return ""
