"""Granting memory and evicting in whole rounds, also where models of the same name or size are easily confused."""

import os
import signal
import threading
from time import monotonic_ns

import pytest
from tritonclient.utils import InferenceServerException

from sie_triton.controller import memory_grants, swaps
from sie_triton.controller.choice import Resident, victims
from sie_triton.controller.memory import DeviceMemory
from sie_triton.errors import REASONS
from sie_triton.records.grants import answer_path
from sie_triton.records.status import ENGINES, LOADING, RESIDENT
from sie_triton.system.host.footprint import GROWTH_BYTES, STAGE_BYTES
from sie_triton.system.processes.pids import is_alive
from tests.support.controller import round_of, stage, wait_for

# Pids of workers, by the bytes that each takes; no process has such a pid.
SIZES = {2**23 + size: size for size in (250, 300, 301, 400, 401, 500)}
WORKERS = {size: pid for pid, size in SIZES.items()}


@pytest.fixture(autouse=True)
def worker_bytes(monkeypatch):
    monkeypatch.setattr("sie_triton.controller.model_states.worker_bytes", lambda pid: SIZES.get(pid, 0))


def set_up(controller, **settings):
    controller._settings = controller._settings.model_copy(update=settings)


def used(controller, num_bytes):
    """Set the used memory, in bytes; 1,000 exist, and 850 may be used."""
    controller.measured = DeviceMemory(num_bytes, 1000, "test")


def loading(controller, name, pid, taken=None, **fields):
    return stage(controller, name, pid, state=LOADING, worker_pid=WORKERS.get(taken, 0), **fields)


def resident(controller, name, pid, size, **fields):
    return stage(controller, name, pid, state=RESIDENT, worker_pid=WORKERS[size], **fields)


def verdict(controller, pid):
    """Return the first line of the controller's message to the process."""
    path = answer_path(controller._directory, pid)
    return path.read_text().partition("\n")[0] if path.exists() else None


def test_an_older_process_does_not_evict_its_own_model(controller, control, pids):
    """The older process got requests before the traffic moved, and loads late; its model is least recently used."""
    old, new, other, *_ = pids
    used(controller, 700)
    loading(controller, "a", old, wanted_bytes=400)
    resident(controller, "a", new, 300, generation=1, last_used_ns=1)
    resident(controller, "b", other, 301, last_used_ns=2)
    round_of(controller)
    assert control.swapped == [("b-inference", False)]


def test_a_load_is_refused_if_only_its_own_model_is_evictable(controller, control, pids):
    old, new, *_ = pids
    used(controller, 700)
    loading(controller, "a", old, wanted_bytes=400).record["wanted_since_ns"] -= 6 * 10**9
    resident(controller, "a", new, 400, generation=1)
    round_of(controller)
    assert verdict(controller, old) == "out of memory"
    assert control.swapped == []


@pytest.fixture
def overgrown(controller, monkeypatch):
    """Set the processes that have taken so many bytes each, by pid, while memory is short for that reason."""

    def take(taken):
        monkeypatch.setattr("sie_triton.controller.model_states.worker_bytes", lambda pid: taken.get(pid, 400))
        monkeypatch.setattr(memory_grants, "private_bytes", lambda pid: taken.get(pid, 0))
        used(controller, 900)

    return take


def growing(controller, pid, worker, **fields):
    """A model in memory whose worker needs 300 bytes at rest and 100 for its passes."""
    needs = {"weights_bytes": 200, "beside_bytes": 100, "pass_bytes": 100}
    return stage(controller, "a", pid, state=RESIDENT, worker_pid=worker, last_used_ns=9, **needs, **fields)


MOST = memory_grants.OVERDRAWN * (400 + GROWTH_BYTES)


@pytest.mark.parametrize("waits", [False, True])
def test_a_worker_that_outgrows_its_measurement_pays_before_other_models(
    controller, control, pids, overgrown, caplog, waits
):
    stage_pid, worker, other, waiting = pids
    overgrown({worker: MOST + 1})
    growing(controller, stage_pid, worker)
    resident(controller, "b", other, 400, last_used_ns=1)
    if waits:  # below the threshold, but without room for another
        used(controller, 700)
        stage(controller, "c", waiting, state=LOADING, wanted_bytes=200)
    round_of(controller)
    wait_for(lambda: not is_alive(worker))
    overgrown({worker: 0})
    round_of(controller)  # until that memory has been measured as free, nothing is evicted
    assert control.swapped == []
    assert [message for message in caplog.messages if "the worker of a " in message]


def test_a_worker_that_only_uses_what_it_may_is_not_ended(controller, control, pids, overgrown):
    stage_pid, worker, other, _ = pids
    overgrown({worker: MOST})
    growing(controller, stage_pid, worker)
    resident(controller, "b", other, 400, last_used_ns=1)
    round_of(controller)
    assert is_alive(worker)
    assert control.swapped == [("b-inference", False)]


@pytest.mark.parametrize("kind", ["preprocess", "postprocess"])
def test_a_stage_that_takes_too_much_pays_before_other_models(controller, control, pids, overgrown, caplog, kind):
    hog, other, *_ = pids
    overgrown({hog: STAGE_BYTES + controller._settings.max_decoded_bytes + 1})
    stage(controller, "a", hog, kind, state=RESIDENT)
    resident(controller, "b", other, 400)
    controller.tick()
    wait_for(lambda: not is_alive(hog))
    assert control.swapped == []
    assert [message for message in caplog.messages if f"the {kind} process of a " in message]


def test_a_worker_whose_passes_are_not_known_is_not_ended(controller, pids, overgrown):
    stage_pid, worker, *_ = pids
    overgrown({worker: 10 * MOST})
    growing(controller, stage_pid, worker).record["pass_bytes"] = 0
    round_of(controller)
    assert is_alive(worker)


def test_memory_taken_beyond_a_grant_is_not_granted_to_others(controller, pids):
    used(controller, 700)
    loading(controller, "a", pids[0], taken=500, granted_bytes=300)
    loading(controller, "b", pids[1], wanted_bytes=200)
    round_of(controller)
    assert verdict(controller, pids[1]) is None


def test_a_gpu_grant_stays_fully_reserved_until_measured(controller, pids):
    """The loader's share of the machine's memory says nothing about the GPU's."""
    controller._meters = {"cuda:0": controller._meters["cpu"]}
    used(controller, 250)
    loading(controller, "a", pids[0], taken=250, granted_bytes=300)
    loading(controller, "b", pids[1], wanted_bytes=301)
    round_of(controller)
    assert verdict(controller, pids[1]) is None


def test_a_model_being_evicted_counts_as_freed_and_is_not_chosen_again(controller, control, pids):
    """400 bytes are being freed: enough for the first shortage, and 50 too few for the second."""
    first, second, *_ = pids
    resident(controller, "a", first, 400, last_used_ns=1)
    resident(controller, "b", second, 401, last_used_ns=2)
    control.may_end.clear()
    used(controller, 900)
    for _ in range(2):
        controller.tick()
    assert controller.swaps.counts == {("a", "evict: pressure"): 1}
    used(controller, 850 + 450)
    controller.tick()
    assert controller.swaps.counts == {("a", "evict: pressure"): 1, ("b", "evict: pressure"): 1}
    control.may_end.set()


def test_a_model_whose_pdf_is_being_drawn_leaves_after_an_idle_one(controller, control, pids):
    """Its request would make the old process load again."""
    drawing, tokenizer, idle, _ = pids
    resident(controller, "a", drawing, 400, last_used_ns=1)
    stage(controller, "a", tokenizer, "preprocess", state=RESIDENT, num_open=1)
    resident(controller, "b", idle, 401, last_used_ns=2)
    used(controller, 900)
    round_of(controller)
    assert control.swapped == [("b-inference", False)]


def test_an_eviction_that_ends_within_a_round_is_not_repeated(controller, control, pids, monkeypatch):
    """The round has read the records of the process that was replaced meanwhile."""
    resident(controller, "a", pids[0], 400)
    used(controller, 900)
    control.may_end.clear()
    controller.tick()
    swap = controller.swaps.evict("a", "pressure")

    def end_swap() -> None:
        control.may_end.set()
        swap.result(10)

    monkeypatch.setattr(controller, "_look_for_triton", end_swap)
    controller.tick()
    assert controller.swaps.counts == {("a", "evict: pressure"): 1}


def test_a_swap_that_fails_is_not_repeated_at_once(controller, control, pids, monkeypatch):
    """Another model leaves meanwhile, and no tokenizer is freed again and again."""
    now = [1000.0]
    monkeypatch.setattr(swaps, "monotonic", lambda: now[0])
    monkeypatch.setattr(memory_grants, "monotonic_ns", lambda: 2**62)
    resident(controller, "a", pids[0], 400)
    stage(controller, "c", pids[1], "preprocess", state=RESIDENT)
    stage(controller, "c", pids[2])
    used(controller, 900)
    control.failure = InferenceServerException("no space left on device")
    seen = []
    for _ in range(40):
        round_of(controller)
        seen.append(sorted(control.swapped))
        now[0] += 0.2
    both = [("a-inference", False), ("c-preprocess", False)]
    assert seen[0] == seen[4] == both
    assert seen[6] == seen[14] == sorted(2 * both)
    assert seen[-1] == sorted(4 * both)


def test_a_load_continues_if_its_eviction_fails(controller, control, pids):
    loading(controller, "a", pids[0], granted_bytes=100)
    controller.tick()
    control.may_end.clear()
    control.failure = InferenceServerException("no space left on device")
    swap, is_over = controller.evict("a", "asked for"), threading.Event()
    swap.add_done_callback(lambda _: is_over.set())
    control.may_end.set()
    assert is_over.wait(10)
    assert verdict(controller, pids[0]) is None


@pytest.mark.parametrize(
    ("tokenizer", "inference"), [({"num_open": 1}, {}), ({}, {"num_open": 1}), ({}, {"last_used_ns": 2**62})]
)
def test_the_tokenizer_of_a_model_in_use_stays(controller, control, pids, monkeypatch, tokenizer, inference):
    monkeypatch.setattr(memory_grants, "monotonic_ns", lambda: 2**62)
    before = stage(controller, "a", pids[0], "preprocess", **{"state": RESIDENT, "last_used_ns": 1, **tokenizer})
    after = stage(controller, "a", pids[1], **inference)
    round_of(controller)
    assert control.swapped == []
    before.record["num_open"] = after.record["num_open"] = after.record["last_used_ns"] = 0
    round_of(controller)
    assert control.swapped == [("a-preprocess", False)]


def test_an_old_worker_lives_until_the_eviction_of_its_model_ends(controller, control, pids, child):
    """Requests may still be on their way to it."""
    stage(controller, "a", pids[0], worker_pid=child.pid)
    stage(controller, "a", pids[1], generation=1)
    control.may_end.clear()
    evicting = controller.evict("a", "asked for")
    for _ in range(3):
        controller.tick()
    assert child.poll() is None
    control.may_end.set()
    evicting.result()
    for _ in range(2):
        round_of(controller)
    assert child.wait(10) == -signal.SIGTERM


def test_the_least_recently_used_sufficient_model_is_evicted_alone():
    small, *large = (Resident(name, size, used, 0) for name, size, used in (("a", 4, 1), ("b", 9, 2), ("c", 9, 3)))
    assert victims([*large, small], 4, now_ns=9, min_residency_ns=0) == ["a"]
    assert victims([*large, small], 5, now_ns=9, min_residency_ns=0) == ["b"]


def test_busy_models_are_evicted_by_last_use_regardless_of_size():
    busy = [Resident(name, size, used, 0, True) for name, size, used in (("a", 10, 1), ("b", 100, 2), ("c", 10, 3))]
    assert victims(busy, 50, now_ns=9, min_residency_ns=0) == ["a", "b"]


@pytest.mark.parametrize("critical", [False, True])
def test_models_without_memory_are_not_evicted(critical):
    """Nor does it count when a large model of the less recently used half is chosen."""
    nothing = [Resident(name, 0, 1, 0) for name in ("far", "away")]
    here = [Resident("b", 9, 2, 0), Resident("c", 9, 3, 0)]
    assert victims([*nothing, *here], 8, now_ns=9, min_residency_ns=0, critical=critical) == ["b"]
    assert victims([*nothing, *here], 99, now_ns=9, min_residency_ns=0, critical=critical) == ["b", "c"]


def test_a_remote_model_counts_as_zero_bytes(controller):
    fields = {"state": RESIDENT, "worker_pid": os.getpid(), "device_bytes": 7}
    stage(controller, "near", **fields)
    stage(controller, "far", **fields, engine=ENGINES.index("remote"))
    round_of(controller)
    assert {name: model.num_bytes for name, model in controller.models.items()} == {"near": 7, "far": 0}


def test_dead_processes_and_failed_tokenizers_do_not_count_as_loading(controller, child):
    """A dead process's demand is dropped; a model whose tokenizer could not be loaded has failed."""
    child.kill()
    child.wait()
    stage(controller, "a", child.pid, state=LOADING, wanted_bytes=5)
    stage(controller, "b", load_failure=0)
    stage(controller, "b", kind="preprocess", load_failure=2)
    round_of(controller)
    assert list(controller.models["a"].living) == []
    assert verdict(controller, child.pid) is None
    assert controller.models["b"].failure == list(REASONS)[1]
    assert controller.models["b"].state == "failed"


# --- whole rounds


def test_the_load_that_waited_longest_is_first(controller, pids):
    for name, pid, seconds in (("a", pids[0], 1), ("b", pids[1], 2)):
        since = monotonic_ns() - seconds * 10**9
        loading(controller, name, pid, wanted_bytes=500, wanted_since_ns=since)
    round_of(controller)
    assert [answer_path(controller._directory, pid).exists() for pid in pids[:2]] == [False, True]


def test_a_draining_process_counts_as_freed_memory(controller, control, pids):
    """A process that only finishes its requests holds 300: no model is evicted for the missing 250."""
    used(controller, 700)
    loading(controller, "a", pids[0], wanted_bytes=400)
    resident(controller, "b", pids[1], 300, num_open=1)
    stage(controller, "b", pids[2], generation=1)
    resident(controller, "c", pids[3], 301, last_used_ns=1)
    round_of(controller)
    assert (verdict(controller, pids[0]), control.swapped) == (None, [])


def test_memory_pressure_evicts_the_least_recently_used_model(controller, control, pids):
    resident(controller, "b", pids[0], 400, last_used_ns=1)
    resident(controller, "c", pids[1], 401, last_used_ns=2)
    used(controller, 850)
    round_of(controller)
    assert control.swapped == []
    used(controller, 851)
    round_of(controller)
    assert controller.swaps.counts == {("b", "evict: pressure"): 1}


def test_a_new_resident_is_evicted_only_under_critical_pressure(controller, control, pids):
    set_up(controller, min_residency_s=1000)
    resident(controller, "b", pids[0], 400, resident_since_ns=monotonic_ns())
    used(controller, 970)
    round_of(controller)
    assert control.swapped == []
    used(controller, 971)
    round_of(controller)
    assert control.swapped == [("b-inference", False)]


@pytest.mark.parametrize("busy", ["num_open", "busy_since_ns"])
def test_an_idle_model_is_evicted_and_a_busy_one_is_not(controller, pids, busy):
    set_up(controller, idle_evict_s=1)
    record = resident(controller, "b", pids[0], 300, last_used_ns=1, **{busy: 1}).record
    round_of(controller)
    assert controller.swaps.counts == {}
    record[busy] = 0
    round_of(controller)
    assert controller.swaps.counts == {("b", "evict: idle"): 1}
