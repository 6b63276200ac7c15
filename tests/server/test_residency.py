"""Many models, little memory: eight share a server with room for about three."""

import json
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sie_triton import SIEClient
from sie_triton.bench.workload import texts
from sie_triton.catalog import triton_name
from sie_triton.controller.cli import act, ask, show
from sie_triton.errors import LoadError, ServerError, SIEError
from sie_triton.render.build import write_repository
from sie_triton.server.companion import Companion, controller
from sie_triton.server.launch import Server
from sie_triton.settings import Settings
from sie_triton.stages.status import RESIDENT, is_alive, records_of
from tests.conftest import fresh_settings, tiny_model_file

MODELS = [f"test/model-{i}" for i in range(8)]
TOKEN = "for-tests"
LIMIT = 2_200_000_000  # tritonserver, 24 stages, and three workers of 300 MB
ONE_MODEL = 400_000_000

LONG = pytest.mark.slow, pytest.mark.timeout(1200)


@dataclass
class Crowd:
    settings: Settings
    server: Server
    companion: Companion

    @property
    def grpc(self) -> str:
        return f"127.0.0.1:{self.settings.grpc_port}"

    def models(self) -> dict[str, dict]:
        return {model["model"]: model for model in ask(self.settings, "/v1/models")["models"]}

    def state(self, model: str) -> str:
        return self.models()[model]["state"]

    def act(self, model: str, action: str) -> None:
        ask(self.settings, f"/v1/models/{triton_name(model)}/{action}", post=True)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory, tiny_directory) -> Iterator[Crowd]:
    root = tmp_path_factory.mktemp("crowd")
    (root / "models").mkdir()
    for model in MODELS:
        (root / "models" / f"{triton_name(model)}.yaml").write_text(tiny_model_file(model, tiny_directory))
    settings = fresh_settings(
        root, models_dir=root / "models", memory_limit_bytes=LIMIT, admin_token=TOKEN, min_residency_s=2
    )
    repository = root / "model_repository"
    write_repository(repository, settings, MODELS, runtime=settings.runtime)
    names = [triton_name(model) for model in MODELS]
    with Server(settings, repository, names) as server, controller(settings, server.control_token) as companion:
        server.wait_ready()
        crowd = Crowd(settings, server, companion)
        wait_for(lambda: len(crowd.models()) == len(MODELS))
        yield crowd


@pytest.fixture(scope="module")
def vector(crowd) -> np.ndarray:
    """What every model answers to TEXT: they have the same weights."""
    with SIEClient(crowd.grpc) as client:
        return client.encode(MODELS[0], TEXT)["dense"]


TEXT = texts(1)[0]


@dataclass
class Log:
    """What clients saw: (model, seconds, error or None), and whether every vector was right."""

    calls: list[tuple[str, float, str | None]] = field(default_factory=list)
    num_wrong: int = 0

    @property
    def errors(self) -> list[tuple[str, float, str | None]]:
        return [call for call in self.calls if call[2] is not None]

    def call(self, client: SIEClient, model: str, vector: np.ndarray) -> None:
        started, error = time.monotonic(), None
        try:
            self.num_wrong += float(client.encode(model, TEXT)["dense"] @ vector) < 0.9999
        except SIEError as exc:
            error = f"{type(exc).__name__}: {exc}"
        self.calls.append((model, time.monotonic() - started, error))


def zipf(crowd: Crowd, vector: np.ndarray, per_second: float, seconds: float) -> Log:
    """Open loop: each model is asked for half, a third, … as often as the first."""
    log, random = Log(), np.random.default_rng(7)
    weights = 1 / np.arange(1, len(MODELS) + 1)
    with SIEClient(crowd.grpc) as client, ThreadPoolExecutor(64) as pool:
        started = time.monotonic()
        for i in range(int(seconds * per_second)):
            time.sleep(max(0.0, started + i / per_second - time.monotonic()))
            pool.submit(log.call, client, str(random.choice(MODELS, p=weights / weights.sum())), vector)
    return log


@contextmanager
def busy(crowd: Crowd, model: str, vector: np.ndarray, clients: int = 4) -> Iterator[Log]:
    log, stopped = Log(), threading.Event()

    def run() -> None:
        with SIEClient(crowd.grpc) as client:
            while not stopped.is_set():
                log.call(client, model, vector)

    with ThreadPoolExecutor(clients) as pool:
        for _ in range(clients):
            pool.submit(run)
        try:
            yield log
        finally:
            stopped.set()


@contextmanager
def watching(look: Callable[[], object]) -> Iterator[list]:
    """What `look` gave, ten times a second."""
    seen, stopped = [], threading.Event()

    def run() -> None:
        while not stopped.wait(0.1):
            with suppress(ServerError):
                seen.append(look())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield seen
    finally:
        stopped.set()
        thread.join()


@pytest.mark.parametrize("seconds", [40, pytest.param(600, marks=LONG)])
def test_models_come_and_go_and_no_request_fails(crowd, vector, seconds):
    with watching(lambda: ask(crowd.settings, "/v1/models")) as seen:
        log = zipf(crowd, vector, 10, seconds)
    used = [answer["memory"]["used_bytes"] for answer in seen]
    residents = [sum(model["state"] == "resident" for model in answer["models"]) for answer in seen]
    evictions = re.findall(r"(\S+)-inference: evict", controller_log(crowd))
    seconds_each = np.array([call[1] for call in log.calls])
    print(f"\n{len(log.calls)} requests, {len(evictions)} evictions, most in memory {max(residents)}")
    print(f"p50 {np.percentile(seconds_each, 50) * 1e3:.0f} ms, p99 {np.percentile(seconds_each, 99):.1f} s")
    print(f"memory {max(used) >> 20} MiB at most, limit {LIMIT >> 20}")
    assert log.errors == []
    assert log.num_wrong == 0
    assert evictions
    assert 2 <= max(residents) <= 5
    assert max(used) <= LIMIT + ONE_MODEL


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=LONG)])
def test_the_busiest_model_is_evicted_and_nobody_notices(crowd, vector, rounds):
    model = MODELS[0]
    with SIEClient(crowd.grpc) as client:
        client.encode(model, TEXT)
    with busy(crowd, model, vector) as log, watching(lambda: copies(crowd, model)) as seen:
        for _ in range(rounds):
            wait_for(lambda: crowd.state(model) == "resident")
            worker = crowd.models()[model]["worker_pid"]
            crowd.act(model, "evict")
            wait_for(lambda worker=worker: not is_alive(worker), 20)
    slowest = max(seconds for _, seconds, _ in log.calls)
    print(f"\n{len(log.calls)} requests, slowest {slowest:.1f} s")
    assert log.errors == []
    assert log.num_wrong == 0
    assert max(seen) == 1


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=LONG)])
def test_a_worker_that_dies_under_load_is_not_noticed(crowd, vector, sent, rounds):
    model = MODELS[1]
    with SIEClient(crowd.grpc) as client:
        client.encode(model, TEXT)
    with busy(crowd, model, vector) as log:
        for _ in range(rounds):
            wait_for(lambda: crowd.state(model) == "resident")
            worker = crowd.models()[model]["worker_pid"]
            started = time.monotonic()
            os.kill(worker, sent)
            wait_for(lambda worker=worker: crowd.models()[model]["worker_pid"] not in (worker, None), 60)
            wait_for(lambda: crowd.state(model) == "resident", 60)
            print(f"\nback after {time.monotonic() - started:.1f} s")
    assert log.errors == []
    assert log.num_wrong == 0


@pytest.mark.parametrize("stage", ["preprocess", "inference", "postprocess"])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_stage_that_dies_is_healed(crowd, vector, stage, sent):
    model = MODELS[2]
    with SIEClient(crowd.grpc, timeout=20) as client:
        client.encode(model, TEXT)
        (record,) = records_of(crowd.settings.status_dir, triton_name(model), stage)
        started = time.monotonic()
        os.kill(record["pid"], sent)

        def answers() -> bool:
            with suppress(SIEError):
                return float(client.encode(model, TEXT, timeout=3)["dense"] @ vector) > 0.9999
            return False

        wait_for(answers, 60)
        print(f"\nback after {time.monotonic() - started:.1f} s")
    assert not is_alive(record["pid"])


def test_without_its_controller_traffic_goes_on_and_another_one_is_started(crowd, vector):
    before = crowd.companion.pid
    with busy(crowd, MODELS[3], vector, clients=2) as log:
        wait_for(lambda: len(log.calls) > 2)
        os.kill(before, signal.SIGKILL)
        with SIEClient(crowd.grpc) as client:
            assert float(client.encode(MODELS[4], TEXT)["dense"] @ vector) > 0.9999
        wait_for(lambda: crowd.companion.pid != before)
        wait_for(lambda: answers(crowd))
        crowd.act(MODELS[3], "evict")
    assert log.errors == []
    assert set(crowd.models()) == set(MODELS)


def test_load_and_evict_want_the_token(crowd):
    url = f"http://127.0.0.1:{crowd.settings.controller_port}/v1/models/{triton_name(MODELS[0])}/evict"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url, method="POST", headers=headers))
        assert caught.value.code == 401
    with pytest.raises(ServerError, match="test/nope is not served; served are test/model-0"):
        crowd.act("test/nope", "evict")


def test_load_puts_a_model_into_memory_before_its_first_request(crowd, vector):
    crowd.act(MODELS[7], "evict")
    wait_for(lambda: crowd.state(MODELS[7]) == "cold")
    crowd.act(MODELS[7], "load")
    wait_for(lambda: crowd.state(MODELS[7]) == "resident")
    with SIEClient(crowd.grpc) as client:
        started = time.monotonic()
        assert float(client.encode(MODELS[7], TEXT)["dense"] @ vector) > 0.9999
        assert time.monotonic() - started < 3


def test_clients_cannot_reach_tritons_model_control(crowd):
    with triton.InferenceServerClient(crowd.grpc) as client:
        for call in (
            lambda: client.load_model(triton_name(MODELS[0])),
            lambda: client.unload_model(triton_name(MODELS[0])),
            client.get_model_repository_index,
            lambda: client.update_trace_settings(settings={}),
        ):
            with pytest.raises(InferenceServerException, match="restricted"):
                call()
    url = f"http://127.0.0.1:{crowd.settings.http_port}/v2/repository/models/{triton_name(MODELS[0])}/unload"
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(url, method="POST", data=b"{}"))
    assert caught.value.code == 403


def test_the_command_line_shows_and_evicts(crowd, tmp_path, capsys):
    where = crowd.settings.model_copy(update={"admin_token": TOKEN})
    with SIEClient(crowd.grpc) as client:
        client.encode(MODELS[5], TEXT)
    wait_for(lambda: crowd.state(MODELS[5]) == "resident")
    show(where, watch=False, picture=tmp_path / "status.svg")
    act(where, MODELS[5], "evict")
    text = capsys.readouterr().out
    assert re.search(r"test/model-5 +│ resident +│ +0\.\d\d GiB", text)
    assert "test/model-5: evict done" in text
    assert "resident" in (tmp_path / "status.svg").read_text()


def test_metrics_of_the_controller(crowd):
    with urllib.request.urlopen(f"http://127.0.0.1:{crowd.settings.controller_port}/metrics") as response:
        page = response.read().decode()
    assert 'sie_memory_limit_bytes{source="SIE_MEMORY_LIMIT_BYTES"} 2.2e+09' in page
    assert 'sie_model_state{model="test/model-0",state="resident"}' in page
    assert "sie_swaps_total{" in page


def test_a_model_that_never_fits_says_so_and_idle_ones_are_evicted(tmp_path, tiny_directory):
    small, settings = (
        "test/small",
        fresh_settings(
            tmp_path, models_dir=tmp_path, memory_limit_bytes=230_000_000, idle_evict_s=2, admin_token=TOKEN
        ),
    )
    (tmp_path / "small.yaml").write_text(tiny_model_file(small, tiny_directory))
    write_repository(tmp_path / "repository", settings, [small], runtime=settings.runtime)
    names = [triton_name(small)]
    with Server(settings, tmp_path / "repository", names) as server, controller(settings, server.control_token):
        server.wait_ready()
        wait_for(lambda: answers(settings))
        with SIEClient(f"127.0.0.1:{settings.grpc_port}", timeout=8) as client:
            with pytest.raises(SIEError, match=r"need about 0\.\d+ GiB, but .* only 0\.\d+ GiB are free") as caught:
                client.encode(small, TEXT)
            assert caught.type is not LoadError or "SIE_MEMORY_LIMIT_BYTES" in str(caught.value)


def test_what_is_idle_is_evicted_and_what_is_busy_is_not(tmp_path, tiny_directory, vector):
    settings = fresh_settings(tmp_path, models_dir=tmp_path, idle_evict_s=3)
    for model in MODELS[:2]:
        (tmp_path / f"{triton_name(model)}.yaml").write_text(tiny_model_file(model, tiny_directory))
    write_repository(tmp_path / "repository", settings, MODELS[:2], runtime=settings.runtime)
    names = [triton_name(model) for model in MODELS[:2]]
    with Server(settings, tmp_path / "repository", names) as server, controller(settings, server.control_token) as it:
        server.wait_ready()
        crowd = Crowd(settings, server, it)
        with SIEClient(crowd.grpc) as client:
            client.encode(MODELS[0], TEXT)
        with busy(crowd, MODELS[1], vector, clients=1) as log:
            wait_for(lambda: answers(crowd) and crowd.state(MODELS[1]) == "resident")
            worker = crowd.models()[MODELS[1]]["worker_pid"]
            wait_for(lambda: crowd.state(MODELS[0]) == "cold", 60)
            time.sleep(4)
            assert crowd.models()[MODELS[1]]["worker_pid"] == worker
    assert log.errors == []


def copies(crowd: Crowd, model: str) -> int:
    """Living processes that say they hold the weights of `model`."""
    records = records_of(crowd.settings.status_dir, triton_name(model), "inference")
    return sum(r["state"] == RESIDENT and bool(r["worker_pid"]) and is_alive(r["worker_pid"]) for r in records)


def answers(crowd: Crowd | Settings) -> bool:
    settings = crowd.settings if isinstance(crowd, Crowd) else crowd
    with suppress(ServerError, json.JSONDecodeError):
        return bool(ask(settings, "/v1/models")["models"])
    return False


def controller_log(crowd: Crowd) -> str:
    return (crowd.settings.data_dir / "logs" / "controller.log").read_text()


def wait_for(condition: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with suppress(ServerError):
            if condition():
                return
        assert time.monotonic() < deadline
        time.sleep(0.05)
