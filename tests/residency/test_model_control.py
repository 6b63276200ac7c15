"""The controller's calls to a real Triton, of which no two are under way at once."""

import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from sie_triton import SIEClient
from sie_triton.contract.names import triton_name
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.model_control import ModelControl
from sie_triton.pipeline.render.build import write_repository
from sie_triton.records.status import records_of
from sie_triton.server.launch import Server
from sie_triton.system.processes.pids import is_alive
from tests.conftest import Running, fresh_settings, model_file, tiny_model_file
from tests.residency.conftest import wait_for
from tests.support.models import save_pylate

BOTH = "test/both"  # encodes and scores
ONE, OTHER = "test__one", "test__other"
SHORT_TURNS = pytest.mark.parametrize("control", [ControllerLimits(turn_s=0.05)], indirect=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, minilm_directory: Path, tiny_directory: Path) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("model-control")
    tasks = {"encode": {"multivector": {"dim": 32}}, "score": {}}
    (root / "both.yaml").write_text(model_file(BOTH, save_pylate(root, minilm_directory), "multivector", tasks))
    for name in ("test/one", "test/other"):
        (root / f"{triton_name(name)}.yaml").write_text(tiny_model_file(name, tiny_directory))
    settings = fresh_settings(root, models_dir=root)
    write_repository(root / "repository", settings, [BOTH, "test/one", "test/other"], runtime=settings.runtime)
    with Server(settings, root / "repository") as running:
        running.wait_ready()
        yield Running(settings, running.pid, running.log.path, running.control_token)


@pytest.fixture
def control(server: Running, request: pytest.FixtureRequest) -> Iterator[ModelControl]:
    control = ModelControl(server.grpc, server.control_token, getattr(request, "param", ControllerLimits()))
    yield control
    control.close()


def test_a_swap_leaves_the_ensembles_of_other_models_alone(server, control):
    """Triton alone would load the ensembles of all models that had a swap, with each load of any model."""

    def num_loads(ensemble: str) -> int:
        return server.log_path.read_text().count(f"loading: {ensemble}:1")

    wait_for(lambda: num_loads(ONE) == num_loads(OTHER) == 1)
    control.swap(f"{ONE}-inference")
    for _ in range(3):
        control.swap(f"{OTHER}-postprocess")
    wait_for(lambda: num_loads(OTHER) == 7)  # each swap loads it twice: with its step, and by its name
    assert num_loads(ONE) == 3


def test_loads_take_turns(control, monkeypatch):
    load_model, under_way, most = control._client.load_model, [], []

    def watched(name: str, **options: object) -> None:
        under_way.append(name)
        most.append(len(under_way))
        load_model(name, **options)
        under_way.remove(name)

    monkeypatch.setattr(control._client, "load_model", watched)
    with ThreadPoolExecutor(4) as threads:
        names = [f"{model}-{stage}" for model in (ONE, OTHER) for stage in ("preprocess", "inference")]
        list(threads.map(control.swap, names))
        list(threads.map(control.load, names))
    assert len(most) == 12
    assert max(most) == 1


@SHORT_TURNS
def test_a_load_that_hangs_does_not_keep_the_others_waiting(control, monkeypatch):
    load_model, hangs, may_go_on = control._client.load_model, threading.Event(), threading.Event()

    def hanging(name: str, **options: object) -> None:
        if name == f"{ONE}-inference":
            hangs.set()
            assert may_go_on.wait(60)
        load_model(name, **options)

    monkeypatch.setattr(control._client, "load_model", hanging)
    with ThreadPoolExecutor(1) as thread:
        swap = thread.submit(control.swap, f"{ONE}-inference")
        assert hangs.wait(60)
        control.swap(f"{OTHER}-inference")
        assert not swap.done()
        may_go_on.set()
        swap.result()


@SHORT_TURNS
def test_who_waits_goes_on_waiting_while_turns_are_short(control, monkeypatch):
    monkeypatch.setattr(control, "_turn_began", math.inf)  # whoever has the turn has just got it
    with ThreadPoolExecutor(1) as thread:
        with control._lock:
            load = thread.submit(control.load, f"{ONE}-postprocess")
            time.sleep(0.5)
            assert not load.done()
        load.result()


def test_no_process_of_a_stage_ends_by_a_fault(server, control):
    """One that freed requests of Triton at its end would."""
    log = server.settings.data_dir / "logs" / "stubs.log"

    def pids() -> list[int]:
        return [
            pid for record in records_of(server.settings.status_dir, ONE, "inference") if is_alive(pid := record["pid"])
        ]

    before = pids()
    control.swap(f"{ONE}-inference")
    wait_for(lambda: not any(map(is_alive, before)))
    os.kill(pids()[0], signal.SIGABRT)
    wait_for(lambda: "ended by SIGABRT" in log.read_text())
    assert "SIGSEGV" not in log.read_text()


def test_unload_takes_every_task_of_a_model(server, control):
    with SIEClient(server.grpc) as client, triton.InferenceServerClient(server.grpc) as raw:
        assert BOTH in client.list_models()
        assert len(client.score(BOTH, "who?", ["I", "you"])["scores"]) == 2
        control.unload_all_of(triton_name(BOTH))
        names = (f"{triton_name(BOTH)}{suffix}" for suffix in ("", "-score", "-inference"))
        wait_for(lambda: not any(raw.is_model_ready(name) for name in names))
        assert BOTH not in client.list_models()
