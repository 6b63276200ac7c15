"""LoRA adapters that a worker holds, tested at the stage's interface with an in-memory worker."""

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sie_triton.errors import BusyError, LoadError
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.stages import lora_cache
from tests.support.controller import wait_for
from tests.support.held_loras import SIZE, FakeWorker, Model


@pytest.fixture
def model(tmp_path, request):
    made = Model(tmp_path / "m-inference.1.loras", getattr(request, "param", StageLimits()))
    yield made
    made.loras.close()


def test_the_first_request_loads_the_adapter_and_later_ones_wait_for_it(model):
    model.worker.may_add.clear()
    jobs = [model.ask("a") for _ in range(3)]
    assert model.submitted == []
    model.worker.may_add.set()
    model.wait_for(lambda: len(model.submitted) == 3)
    assert model.submitted == jobs
    assert model.worker.orders == ["+a"]
    assert model.loras.take(model.job("a"))


def test_jobs_of_a_loaded_adapter_run_also_if_no_thread_can_be_started(model, monkeypatch):
    def refused():
        raise BusyError("no thread can be started")

    monkeypatch.setattr(model.loras._sweep, "start", refused)
    model.use("a")
    assert model.worker.orders == ["+a"]


def test_held_adapters_are_in_the_record(model):
    model.use("a")
    model.use("b")
    model.loras.close()
    assert model.status.record == {"weights_bytes": 5 + 2 * SIZE, "device_bytes": 7}
    assert {
        name: (each["state"], each["bytes"]) for name, each in json.loads(model.status.loras_path.read_text()).items()
    } == {"a": ("resident", SIZE), "b": ("resident", SIZE)}


@pytest.mark.parametrize("model", [StageLimits(lora_write_s=0.0)], indirect=True)
def test_loading_and_reused_adapters_are_in_the_record(model):
    def written():
        return {each["name"]: each for each in json.loads(model.status.loras_path.read_text()).values()}

    model.worker.may_add.clear()
    job = model.ask("a")
    wait_for(lambda: model.status.loras_path.exists())
    assert written()["a"]["state"] == "loading"
    model.worker.may_add.set()
    model.wait_for(lambda: job in model.submitted)
    wait_for(lambda: written()["a"]["state"] == "resident")
    before = written()["a"]["last_used_ns"]
    model.ask("a")
    wait_for(lambda: written()["a"]["last_used_ns"] > before)


def test_the_least_recently_used_makes_room(model):
    for lora in ("a", "b", "c", "a", "d", "b"):
        model.use(lora)
    assert model.worker.orders == ["+a", "+b", "+c", "-b", "+d", "-c", "+b"]


def test_an_adapter_in_use_stays_though_others_were_used_later(model):
    busy = model.ask("a")
    model.wait_for(lambda: busy in model.submitted)
    for lora in ("b", "c", "d"):
        model.use(lora)
    assert model.worker.orders == ["+a", "+b", "+c", "-b", "+d"]


def test_an_adapter_stays_between_the_taking_of_a_request_and_its_pass(model):
    model.use("a")
    at_once = model.job("a")
    assert model.loras.take(at_once)
    for lora in ("b", "c", "d"):
        model.use(lora)
    at_once.is_done = True
    model.use("e")
    assert model.worker.orders == ["+a", "+b", "+c", "-b", "+d", "-a", "+e"]


def test_an_adapter_in_a_forward_pass_stays_when_its_request_is_answered(model):
    model.use("a")
    with model.loras.running({"a", "x"}) as held:
        assert held == {"a"}
        for lora in ("b", "c", "d"):
            model.use(lora)
    model.use("e")
    assert model.worker.orders == ["+a", "+b", "+c", "-b", "+d", "-a", "+e"]


def test_if_all_adapters_are_in_use_the_oldest_is_drained_and_evicted(model):
    busy = []
    for lora in ("a", "b", "c"):
        busy.append(model.ask(lora))
        model.wait_for(lambda: busy[-1] in model.submitted)
    waits = model.ask("d")
    while not any(each.leaving for each in model.loras._known.values()):
        time.sleep(0.001)
    late = model.ask("a")
    assert model.worker.held == ["a", "b", "c"]
    model.answered(busy[0])
    model.wait_for(lambda: waits in model.submitted)
    assert model.worker.orders[3:5] == ["-a", "+d"]
    model.answered(busy[1])
    model.wait_for(lambda: late in model.submitted)
    assert model.worker.orders[5:] == ["-b", "+a"]


def test_a_failure_is_reported_remembered_and_retried(model, monkeypatch):
    job = model.ask("bad")
    model.wait_for(lambda: job.request.told is not None)
    told = str(job.request.told)
    assert told == (
        "the LoRA adapter bad is not loaded (unsupported): no such layer; the first request after 30 s tries again"
    )
    assert job.request.told.reason == "unsupported"
    with pytest.raises(LoadError, match="no such layer"):
        model.loras.take(model.job("bad"))
    model.use("good")
    assert model.worker.orders == ["+bad", "+good"]
    now = time.monotonic()
    monkeypatch.setattr(lora_cache, "monotonic", lambda: now + 31)
    again = model.ask("bad")
    model.wait_for(lambda: again.request.told is not None)
    assert model.worker.orders == ["+bad", "+good", "+bad"]
    monkeypatch.setattr(lora_cache, "monotonic", lambda: now + 62)
    other = model.ask("bad too")
    model.wait_for(lambda: other.request.told is not None)
    assert "bad" not in model.loras._known, "clients may name any number of them"


@pytest.mark.parametrize("model", [StageLimits(num_waiting_for_lora=2)], indirect=True)
def test_the_number_of_requests_waiting_for_an_adapter_is_limited(model):
    model.worker.may_add.clear()
    model.ask("a"), model.ask("a")
    with pytest.raises(BusyError, match="lora a: is being loaded, and 2 requests wait; retry"):
        model.ask("a")
    model.ask("b")
    model.worker.may_add.set()


def test_requests_answered_during_the_load_are_dropped(model):
    model.worker.may_add.clear()
    late, job = model.ask("a"), model.ask("a")
    model.answered(late)
    model.worker.may_add.set()
    model.wait_for(lambda: job in model.submitted)
    assert late not in model.submitted


def test_a_new_worker_gets_what_the_old_one_had(model):
    model.use("a")
    model.use("b")
    model.loras.restore(other := FakeWorker())
    assert other.held == ["a", "b"]
    model.use("c")
    assert other.held == ["a", "b", "c"]
    assert model.worker.held == ["a", "b"]


def test_a_copy_has_what_the_worker_has_before_it_joins_and_from_then_on(model):
    for lora in ("a", "b"):
        model.use(lora)
    copy, held = FakeWorker(), []
    model.loras.equip(copy, lambda: held.extend(copy.held))
    assert held == ["a", "b"]
    for lora in ("c", "d"):
        model.use(lora)
    assert sorted(copy.held) == sorted(model.worker.held) == ["b", "c", "d"]
    model.loras.leave(copy)
    model.use("e")
    assert "e" not in copy.held


def test_a_copy_that_becomes_the_worker_gets_no_adapter_twice(model):
    model.use("a")
    copy = FakeWorker()
    model.loras.equip(copy, lambda: None)
    model.loras.restore(copy)
    assert copy.orders == ["+a"]
    model.use("b")
    assert (copy.orders, model.worker.held) == (["+a", "+b"], ["a"])


def test_a_copy_that_cannot_take_an_adapter_ends(model):
    """The worker has it, and its jobs run there."""
    copy = FakeWorker()
    copy.once_refused.add("a")
    model.loras.equip(copy, lambda: None)
    model.use("a")
    assert (copy.is_dead, copy.held, model.worker.held) == (True, [], ["a"])


def test_a_copy_joins_only_with_all_adapters(model):
    model.use("a")
    copy = FakeWorker()
    copy.once_refused.add("a")
    with pytest.raises(LoadError):
        model.loras.equip(copy, lambda: pytest.fail("it has joined"))
    model.use("b")
    assert copy.held == []


def test_an_adapter_that_a_new_worker_did_not_take_is_loaded_on_request(model):
    model.use("a")
    other = FakeWorker()
    other.is_dead = True
    model.loras.restore(other)
    other.is_dead = False
    assert not model.loras.take(model.job("a"))
    model.use("a")
    assert other.held == ["a"]


def test_requests_for_an_adapter_that_was_leaving_a_dead_worker_are_not_lost(model):
    """The adapter takes no more requests, and the new worker does not take the adapter at first."""
    busy = [model.ask(lora) for lora in ("a", "b", "c")]
    model.wait_for(lambda: len(model.submitted) == 3)
    waits = model.ask("d")
    wait_for(lambda: any(each.leaving for each in model.loras._known.values()))
    late = model.ask("a")
    other = FakeWorker()
    other.once_refused.add("a")
    model.loras.restore(other)
    for job in busy:
        model.answered(job)
    model.wait_for(lambda: {waits, late} <= set(model.submitted))


def test_the_files_of_an_adapter_are_in_use_while_it_is_held(model):
    """A new worker would read them again."""
    for lora in ("a", "b", "c"):
        model.use(lora)
    model.loras.restore(FakeWorker())
    assert all(map(model.is_in_use, "abc"))
    passes_may_refer_to = [*model.loras._known.values()]
    model.use("d")
    model.removed = {"c"}
    model.loras.free_removed()
    failed = model.ask("bad")
    model.wait_for(lambda: failed.request.told is not None)
    assert [lora for lora in ("a", "b", "c", "d", "bad") if model.is_in_use(lora)] == ["b", "d"]
    del passes_may_refer_to


def test_an_adapter_loaded_while_the_worker_dies_goes_to_the_next_worker(model):
    model.worker.is_dead = True
    job = model.ask("a")
    time.sleep(0.05)
    model.loras.restore(other := FakeWorker())
    model.wait_for(lambda: job in model.submitted)
    assert other.held == ["a"]


def test_an_adapter_added_just_before_the_worker_died_goes_to_the_next_worker(model):
    model.worker.may_add.clear()
    job = model.ask("a")
    time.sleep(0.05)
    model.loras.restore(other := FakeWorker())
    model.worker.may_add.set()
    model.wait_for(lambda: job in model.submitted)
    assert (model.worker.held, other.held) == (["a"], ["a"])


@pytest.mark.parametrize("model", [StageLimits(lora_worker_s=0.05)], indirect=True)
def test_waiting_requests_get_an_error_if_no_worker_can_be_started(model):
    model.worker.is_dead = True
    job = model.ask("a")
    model.wait_for(lambda: job.request.told is not None)
    assert "no other has replaced it" in str(job.request.told)


def test_any_number_of_clients_and_adapters(model):
    """Every job is submitted once, and no adapter is removed while a pass uses it."""
    names = [f"l{i}" for i in range(6)]
    lock = threading.Lock()

    def client(seed):
        rng = random.Random(seed)
        for _ in range(60):
            job = model.ask(rng.choice(names))
            model.wait_for(lambda job=job: job in model.submitted)
            with model.loras.running({job.lora}) as held:
                assert held == {job.lora}
                with lock:
                    model.worker.in_use[job.lora] = model.worker.in_use.get(job.lora, 0) + 1
                time.sleep(rng.random() / 1000)
                assert job.lora in model.worker.held
                with lock:
                    model.worker.in_use[job.lora] -= 1
            model.answered(job)

    with ThreadPoolExecutor(8) as clients:
        for done in [clients.submit(client, seed) for seed in range(8)]:
            done.result(60)
    assert len(model.submitted) == len(set(map(id, model.submitted))) == 8 * 60


def test_an_adapter_that_was_removed_goes_as_soon_as_it_is_idle(model, monkeypatch):
    model.use("a")
    model.use("b")
    job = model.ask("b")
    model.removed = {"b"}
    model.loras.free_removed()
    assert model.worker.held == ["a", "b"]  # an open request still uses "b"
    model.answered(job)
    model.loras.free_removed()
    assert model.worker.held == ["a"]
    assert json.loads(model.status.loras_path.read_text()).keys() == {"a"}
    model.removed = set()
    model.use("b")
    assert model.worker.orders == ["+a", "+b", "-b", "+b"]


@pytest.mark.parametrize("model", [StageLimits(lora_sweep_s=0.01)], indirect=True)
def test_removed_adapters_are_looked_for_without_any_request(model):
    model.use("a")
    model.removed = {"a"}
    wait_for(lambda: model.worker.held == [])
