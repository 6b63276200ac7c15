"""Two revisions of a model side by side: weights, waiting, replacement, and the view of others."""

import os
import signal
from dataclasses import replace
from threading import Event

import pytest

from sie_triton.controller.api import describe
from sie_triton.controller.memory import DeviceMemory
from sie_triton.controller.model_states import models_of, read_stages
from sie_triton.controller.repository import Wanted
from sie_triton.pipeline.stages.loader import Loader
from sie_triton.records.grants import answer_path, grant_of
from sie_triton.records.status import COLD, LOADING, RESIDENT, StatusWriter
from sie_triton.system.processes.pids import is_alive
from tests.support.controller import round_of, stage, wait_for
from tests.support.stages import spec

OLD, NEW = "m@1", "m@2"


@pytest.fixture
def two(controller, pids):
    """A round's models where requests take NEW, and `pids` of old inference, its worker, and new inference."""

    def given(old=None, new=None):
        records = [
            stage(controller, OLD, pids[0], **(old or {"state": RESIDENT, "worker_pid": pids[1]})),
            stage(controller, NEW, pids[2], **(new or {})),
        ]
        controller.changes.serving["m"] = NEW
        return records

    return given


# --- the stages


@pytest.mark.parametrize(
    ("steps", "other", "state", "expected"),
    [
        ("m", "m@2", LOADING, True),
        ("m", "m@2", COLD, False),
        ("m@1", "m@2", RESIDENT, True),
        ("m@3", "m@2", RESIDENT, False),
        ("m", "mm@2", LOADING, False),
        ("m", "m-x@2", LOADING, False),
    ],
)
def test_only_a_later_revision_in_use_is_a_successor(tmp_path, child, steps, other, state, expected):
    status = StatusWriter(tmp_path, steps, "inference", 7)
    stage_of(tmp_path, other, child.pid, state=state)
    assert status.has_successor() == expected


def stage_of(directory, name, pid, **fields):
    class Somewhere:
        _directory = directory

    return stage(Somewhere, name, pid, **fields)


def test_all_revisions_have_one_lock_for_their_weights(tmp_path, child):
    def order(steps):
        of = replace(spec(), weights=str(tmp_path))
        return Loader(of, "cpu", StatusWriter(tmp_path, steps, "inference", 0), Event(), print).order(1, 1)

    assert order("m").lock == order(NEW).lock == tmp_path / "m.cpu.weights"
    stage_of(tmp_path, "m@3", child.pid, state=LOADING)
    assert order(NEW).lock == tmp_path / "m.cpu.late"


# --- the controller


def test_a_new_revision_waits_until_the_old_revision_frees_its_memory(controller, two, pids):
    old, _ = two(new={"state": LOADING, "wanted_bytes": 100})
    answer = answer_path(controller._directory, pids[2])
    controller.tick()
    assert not answer.exists()
    old.record["worker_pid"], old.record["state"] = 0, LOADING
    controller.tick()
    assert not answer.exists()
    old.record["state"] = COLD
    controller.tick()
    assert answer.read_text() == grant_of("cpu")


def test_a_pending_load_of_the_old_revision_is_granted_first(controller, two, pids):
    two(old={"state": LOADING, "wanted_bytes": 100}, new={"state": LOADING, "wanted_bytes": 100})
    controller.tick()
    assert answer_path(controller._directory, pids[0]).read_text() == grant_of("cpu")
    assert not answer_path(controller._directory, pids[2]).exists()


@pytest.mark.parametrize("kind", ["preprocess", "inference", "postprocess"])
def test_the_old_worker_ends_once_idle_with_its_successor_loading(controller, two, pids, kind, child):
    old, new = two(new={"state": LOADING, "wanted_bytes": 100})
    busy = old if kind == "inference" else stage(controller, OLD, child.pid, kind)
    busy.record["num_open"] = 1
    for _ in range(4):
        controller.tick()
    assert is_alive(pids[1])
    busy.record["num_open"], new.record["state"] = 0, COLD
    for _ in range(4):
        controller.tick()
    assert is_alive(pids[1])  # its stage would start another
    new.record["state"] = LOADING
    for _ in range(2):
        controller.tick()
    wait_for(lambda: not is_alive(pids[1]))


def test_a_waiting_revision_keeps_waiting_after_its_eviction(controller, two, pids, child):
    """Another process of the same revision has its place then."""
    two(new={"state": LOADING, "wanted_bytes": 100})
    stage(controller, NEW, child.pid, generation=1)
    answer = answer_path(controller._directory, pids[2])
    controller.tick()
    assert not answer.exists()
    controller.tick()
    wait_for(lambda: not is_alive(pids[1]))


def test_three_revisions_load_in_order(controller, pids, child):
    """Two changes one after the other: the first has a request that waits for the oldest one's weights."""
    stage(controller, "m", pids[0], state=RESIDENT, worker_pid=pids[1])
    middle = stage(controller, OLD, pids[2], state=LOADING, wanted_bytes=100, num_open=1)
    stage(controller, NEW, child.pid, state=LOADING, wanted_bytes=100)
    controller.changes.serving["m"] = NEW
    answers = [answer_path(controller._directory, pid) for pid in (pids[2], child.pid)]
    controller.tick()
    controller.tick()
    wait_for(lambda: not is_alive(pids[1]))
    assert not any(answer.exists() for answer in answers)
    stage(controller, "m", pids[0])
    controller.tick()
    assert [answer.exists() for answer in answers] == [True, False]
    middle.record["state"], middle.record["wanted_bytes"] = COLD, 0
    controller.tick()
    assert answers[1].exists()


def test_memory_of_the_old_revision_counts_as_being_freed(controller, two, monkeypatch):
    monkeypatch.setattr("sie_triton.controller.model_states.worker_bytes", lambda _: 600)
    two()
    controller.tick()
    model = controller.models["m"]
    assert (model.steps, model.state, model.num_bytes, model.going_bytes) == (NEW, "cold", 600, 600)
    described = describe(model)
    assert (described["model"], described["num_draining"]) == ("m", 1)


def test_eviction_targets_the_served_revision_and_counts_under_the_model_name(controller, control, two):
    two()
    controller.tick()
    controller.evict("m", "asked for").result(120)
    assert control.swapped == [(f"{NEW}-inference", False)]
    assert controller.swaps.counts == {("m", "evict: asked for"): 1}


def test_only_the_served_revision_is_restarted_when_stages_die(controller, control, two, pids, child):
    old, new = two()
    for pid in (pids[0], pids[2]):
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda pid=pid: not is_alive(pid))
    coming = stage(controller, "m@3", child.pid)
    child.kill()
    child.wait()
    controller.changes._wanted = {"m": Wanted("m@3", ["m"])}
    round_of(controller)
    assert control.swapped == [(f"{NEW}-inference", False)]
    assert not old._path.exists()
    assert new._path.exists()
    assert coming._path.exists()


def test_without_serving_information_the_latest_revision_counts(tmp_path, pids):
    for steps, pid in zip(("m@9", "m@10", "m"), pids, strict=False):
        stage_of(tmp_path, steps, pid)
    stages = read_stages(tmp_path)
    assert models_of(stages)["m"].steps == "m@10"
    assert models_of(stages, {"m": "m@9"})["m"].steps == "m@9"
    assert len(models_of(stages, {"m": "m@9"})["m"].earlier) == 1
    assert models_of(stages, {"m": "m@11"})["m"].steps == "m@10"


def test_memory_of_a_removed_model_counts_as_being_freed(controller, control, pids, monkeypatch):
    monkeypatch.setattr("sie_triton.controller.model_states.worker_bytes", lambda _: 300)
    controller.measured = DeviceMemory(900, 1000, "test")
    stage(controller, "gone", pids[0], state=RESIDENT, worker_pid=pids[1], last_used_ns=1)
    controller.changes.serving["gone"] = ""
    round_of(controller)
    model = controller.models["gone"]
    assert (model.is_resident, model.num_bytes, model.going_bytes) == (False, 300, 300)
    assert control.swapped == []  # nobody has to go for what is about to be free
