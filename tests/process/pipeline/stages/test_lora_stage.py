"""The inference stage with LoRA adapters, with an in-memory worker or a real worker process."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from sie_triton.contract.spec import Runtime
from sie_triton.errors import InputError, LoadError, LoraLoading
from sie_triton.pipeline.stages.inference import Inference
from sie_triton.pipeline.stages.loader import Loader
from sie_triton.pipeline.stages.open_requests import OpenRequest
from sie_triton.pipeline.stages.request import DEFERRED
from sie_triton.pipeline.worker.handle import WorkerHandle
from sie_triton.pipeline.worker.messages import Done
from sie_triton.records.status import StatusWriter
from tests.process.pipeline.worker.test_worker import LIMITS, SMALL, order
from tests.support.controller import wait_for
from tests.support.loras import save_lora
from tests.support.stages import EchoWorker, run, spec, tokens

RUNTIME = Runtime(max_loras_per_model=2)


class AdaptingWorker(EchoWorker):
    """Worker that records the adapters of its passes; an adapter that is not loaded fails the pass."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[str] = []
        self.loras: list[list[str]] = []
        self.may_add = threading.Event()
        self.may_add.set()
        self.refuses = False

    def add_lora(self, name, directory):
        assert self.may_add.wait(10)
        if self.refuses:
            raise LoadError("no such file", "not found")
        self.held.append(name)
        return Done(1)

    def remove_lora(self, name):
        self.held.remove(name)

    def forward(self, batch, threads):
        self.loras.append(list(batch.loras))
        assert set(batch.loras) <= {"", *self.held}
        return super().forward(batch, threads)


@pytest.fixture
def stage(tmp_path, monkeypatch):
    """Stage with the adapters a, b and c, of which two may be held."""
    sources = {name: str(tmp_path / name) for name in "abc"}
    monkeypatch.setattr(Loader, "fetch_lora", lambda self, source, uses: Path(source))
    workers = [AdaptingWorker(), AdaptingWorker()]
    monkeypatch.setattr(Loader, "order", lambda *_: order(tmp_path, tmp_path))
    monkeypatch.setattr(Loader, "start", lambda *_: workers[1] if workers[0].closed else workers[0])
    monkeypatch.setattr("sie_triton.pipeline.stages.inference.expected_bytes", lambda order: 1)
    made = Inference(spec(loras=sources, runtime=RUNTIME), "cpu", StatusWriter(tmp_path / "s", "m", "inference", 0))
    made.workers, made.sources = workers, sources
    made.warm_up()
    yield made
    made.close()


def by(lora: str, *ids: int, **more):
    return tokens(list(ids), parameters={"lora": lora} if lora else {}, **more)


def test_only_requests_for_a_loading_adapter_wait_for_it(stage):
    stage.workers[0].may_add.clear()
    waits = by("a", 1, 2)
    (direct,) = stage.execute([waits])
    assert direct is DEFERRED
    assert run(stage, [by("", 5)])[0]["dense"].tolist() == [[5, 1]]
    stage.workers[0].may_add.set()
    assert waits.answer(direct)["dense"].tolist() == [[1, 2]]
    assert stage.workers[0].loras == [[], [stage.sources["a"]]]
    assert run(stage, [by("a", 3)])[0]["dense"].tolist() == [[3, 1]]


def test_a_shared_pass_sorts_items_by_adapter(stage):
    run(stage, [by("a", 1)]), run(stage, [by("b", 1)])
    asked = [by(name, *[i] * i) for i, name in enumerate(("b", "a", "b", "", "a", "b", "a"), 1)]
    assert [answer["dense"].tolist()[0] for answer in run(stage, asked)] == [[i, i] for i in range(1, 8)]
    passes = stage.workers[0].loras[2:]
    assert max(len(set(each)) for each in passes) > 1
    assert passes == [sorted(each) for each in passes]


def test_bulk_work_waits_too(stage):
    bulk = tokens(*[[7] * 50 for _ in range(20)], parameters={"lora": "a"})
    (direct,) = stage.execute([bulk])
    assert bulk.answer(direct)["dense"].shape == (20, 2)
    assert {name for each in stage.workers[0].loras for name in each} == {stage.sources["a"]}


def test_an_abandoned_request_is_not_computed(stage):
    stage.workers[0].may_add.clear()
    late = by("a", 1, timeout_us=50_000)
    (direct,) = stage.execute([late])
    assert "timeout" in str(late.answer(direct))
    stage.workers[0].may_add.set()
    run(stage, [by("a", 2)])
    assert stage.workers[0].batches == [1]


def test_an_adapter_may_be_evicted_while_an_expired_request_is_queued(stage):
    """The request was answered at its deadline; the pass that it would have shared runs without it."""
    run(stage, [by("a", 1)])
    worker = stage.workers[0]
    worker.may_go.clear()
    busy = [by("", *[1] * 50), by("", *[2] * 50)]
    directs = stage.execute(busy)
    wait_for(lambda: len(worker.batches) == 3)
    late = by("a", *[3] * 10, timeout_us=50_000)
    (direct,) = stage.execute([late])
    assert "timeout" in str(late.answer(direct))
    others = [by("b", 1), by("c", 1)]
    for other in others:
        stage.execute([other])
    wait_for(lambda: sorted(worker.held) == [stage.sources["b"], stage.sources["c"]])
    worker.may_go.set()
    for request, answer in [*zip(busy, directs, strict=True), *((other, DEFERRED) for other in others)]:
        assert request.answer(answer)["dense"].shape == (1, 2)


def test_a_pass_without_its_adapter_is_skipped(stage):
    """The request was answered between queue and pass, so its adapter may be gone."""
    work = stage._read(stage._loaded, OpenRequest(by("a", 1), stage.open), 0)
    stage._run([(work, 0)], 1)
    assert stage.workers[0].loras == []


def test_a_worker_in_the_place_of_a_dead_one_has_its_adapters(stage):
    run(stage, [by("a", 1)]), run(stage, [by("b", 1)])
    stage.workers[0].deaths = 1
    assert run(stage, [by("a", 9)])[0]["dense"].tolist() == [[9, 1]]
    assert stage.workers[1].held == [stage.sources["a"], stage.sources["b"]]
    assert stage.workers[1].loras == [[stage.sources["a"]]]


def test_queued_requests_are_answered_if_the_next_worker_does_not_take_their_adapter(stage):
    """Another request loads the adapter again."""
    run(stage, [by("a", 1)])
    first, second = stage.workers
    first.may_go.clear()
    first.deaths, second.refuses = 2, True
    busy = [by("", *[1] * 50), by("", *[2] * 50)]
    directs = stage.execute(busy)
    wait_for(lambda: len(first.batches) == 3)
    queued = [by("a", *[3] * 10), tokens(*[[7] * 50 for _ in range(20)], parameters={"lora": "a"})]
    assert stage.execute(queued) == [DEFERRED] * 2
    first.may_go.set()
    for request in queued:
        assert isinstance(error := request.answer(DEFERRED), LoraLoading)
        assert str(error) == "lora a: is not in memory any more; retry"
    for request, direct in zip(busy, directs, strict=True):
        assert request.answer(direct)["dense"].shape == (1, 2)
    wait_for(lambda: stage.status.record["num_open"] == 0)
    second.refuses = False
    assert run(stage, [by("a", 9)])[0]["dense"].tolist() == [[9, 1]]


def test_an_adapter_that_the_model_has_not_is_refused(stage):
    (answer,) = run(stage, [by("d", 1)])
    assert isinstance(answer, InputError)
    assert "parameter lora: m has no adapter 'd'; give one of a, b, c" in str(answer)


# --- a worker with real weights


@pytest.fixture
def worker(tiny_directory, fork_server_directory, deaths):
    worker = WorkerHandle(order(tiny_directory, fork_server_directory), deaths.append, **LIMITS)
    yield worker
    worker.close()


def test_a_worker_holds_adapters_and_forgets_them(worker, tiny_directory, tmp_path):
    save_lora(tmp_path / "lora", SentenceTransformer(str(tiny_directory), device="cpu")[0].model)
    base = worker.forward(SMALL, 1)["dense"]
    done = worker.add_lora("one", tmp_path / "lora")
    assert done.num_bytes > 1000
    mixed = worker.forward(replace(SMALL, loras=["one", ""]), 1)["dense"]
    assert abs(mixed[0] - base[0]).max() > 0.01
    np.testing.assert_allclose(mixed[1], base[1], atol=1e-5)
    (tmp_path / "lora" / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(LoadError, match=r"adapter_model\.safetensors") as told:
        worker.add_lora("two", tmp_path / "lora")
    assert told.value.reason == "corrupt"
    np.testing.assert_allclose(worker.forward(replace(SMALL, loras=["one", ""]), 1)["dense"], mixed, atol=1e-6)
    worker.remove_lora("one")
    np.testing.assert_allclose(worker.forward(SMALL, 1)["dense"], base, atol=1e-6)


def test_a_worker_that_takes_too_long_over_an_order_is_ended(worker, tmp_path, deaths):
    worker._load_timeout_s = 0.05
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(LoadError, match=r"loading took longer than 0\.05 s and was ended"):
        worker.add_lora("one", tmp_path)
    wait_for(lambda: deaths == [worker])


def test_the_failure_of_an_adapter_is_the_answer_of_the_next_requests(stage):
    """The first waits for the load; the second gets its error at once."""
    stage.workers[0].refuses = True
    answers = [run(stage, [by("a", 1)])[0] for _ in range(2)]
    assert [type(answer) for answer in answers] == [LoadError] * 2
    assert stage.status.record["num_faults"] == 0
