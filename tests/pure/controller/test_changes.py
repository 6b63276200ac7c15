"""The controller's changes to make Triton serve what is in the repository; Triton and the clock are fakes."""

import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from sie_triton.controller.changes import Changes
from sie_triton.errors import ServerError
from sie_triton.records.change import ChangeOutcome, ChangeRefused
from tests.support.changing import STAGES, World
from tests.support.controller import wait_for


@pytest.fixture
def world(tmp_path, monkeypatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.changes.close()
    made.swaps.close()


def steps(name):
    return {f"load {name}-{stage}" for stage in STAGES}


def unloads(name):
    return [f"unload {name}-{stage}" for stage in STAGES]


def test_models_that_are_served_correctly_are_left_alone(world):
    world.serve("m", "m", "m-score")
    for _ in range(20):
        world.tick(1)
    assert world.done() == []
    assert world.changes.serving == {"m": "m"}
    assert world.changes.leaving(world.stages()) == set()


def test_a_change_loads_steps_then_ensembles_then_unloads_old_steps(world):
    world.serve("m", "m")
    world.change(lambda: world.write("m@1", "m")).result(120)
    *loaded, last = world.done()
    assert (set(loaded), last) == (steps("m@1"), "load m")
    assert world.triton.steps_behind("m") == "m@1"
    world.tick()
    world.tick(1)
    assert world.done() == []
    world.tick(1.5)
    assert world.done() == unloads("m")
    assert sorted(path.name for path in world.repository.iterdir()) == [
        "m",
        "m@1-inference",
        "m@1-postprocess",
        "m@1-preprocess",
    ]
    world.tick(10)
    assert world.done() == []


def test_the_old_steps_stay_while_a_request_is_in_any_of_them(world):
    stage = "preprocess"
    world.serve("m", "m")
    world.open[f"m-{stage}"] = 1
    world.change(lambda: world.write("m@1", "m")).result(120)
    world.done()
    for _ in range(10):
        world.tick(10)
    assert world.done() == []
    assert world.changes.leaving(world.stages()) == {"m"}
    world.open.clear()
    world.tick(1)
    world.tick(1.9)
    assert world.done() == []
    world.open[f"m-{stage}"] = 1  # one that was between two stages
    world.tick()
    world.open.clear()
    world.tick(1)
    world.tick(1.9)
    assert world.done() == []
    world.tick(1)
    world.tick(2)
    assert world.done() == unloads("m")


def test_a_failed_step_load_keeps_the_old_model_and_is_retried(world):
    world.serve("m", "m")
    world.triton.broken.add("m@1-inference")
    world.outcome.__dict__["model"] = "m"
    with pytest.raises(ServerError, match="Triton: no such thing"):
        world.change(lambda: world.write("m@1", "m")).result(120)
    assert world.triton.steps_behind("m") == "m"
    assert world.changes.problems == {"m": "Triton: no such thing"}
    attempts = []
    world.render = lambda: attempts.append(world.now)
    for _ in range(120):
        world.tick(0.5)
        assert world.triton.steps_behind("m") == "m"
    assert [after - before for before, after in pairwise(attempts)] == [2, 4, 8, 16]
    # What has not begun when one fails is left for the next attempt.
    assert set(world.done()) <= {"load m@1-preprocess", "load m@1-postprocess"}
    world.triton.broken.clear()
    world.tick(30)
    assert world.triton.steps_behind("m") == "m@1"
    assert world.changes.problems == {}


def test_task_ensembles_load_before_the_main_ensemble_and_unload_after_it(world):
    """A client that sees the bare name encode must also find the ensemble that scores."""
    world.serve("m", "m")
    world.change(lambda: world.write("m@1", "m", "m-score")).result(120)
    assert world.done()[-2:] == ["load m-score", "load m"]
    world.change(lambda: (world.write("m@2", "m"), world.remove("m-score"))).result(120)
    assert world.done()[-2:] == ["load m", "unload m-score"]


def test_a_removed_models_steps_are_unloaded_once_they_are_idle(world):
    world.serve("m", "m", "m-score")
    world.write("n", "n")
    world.start_triton()
    world.open["m-inference"] = 1
    world.change(lambda: world.remove("m", "m-score")).result(120)
    assert sorted(world.done()) == ["unload m", "unload m-score"]
    assert world.changes.serving["m"] == ""
    world.tick(10)
    assert world.done() == []
    world.open.clear()
    world.tick()
    world.tick(3)
    assert world.done() == unloads("m")
    world.tick()
    assert world.changes.serving == {"n": "n"}
    assert not [path for path in world.repository.iterdir() if path.name.startswith("m")]


def test_a_model_readded_during_removal_gets_new_steps(world):
    world.serve("m", "m")
    world.open["m-inference"] = 1
    world.change(lambda: world.remove("m")).result(120)
    world.tick(5)
    world.change(lambda: world.write("m@1", "m")).result(120)
    assert world.changes.leaving(world.stages()) == {"m"}
    world.tick(5)
    world.done()
    world.open.clear()
    world.tick()
    world.tick(3)
    assert world.done() == unloads("m")
    assert world.triton.steps_behind("m") == "m@1"


@pytest.mark.parametrize("loaded", range(5))
def test_a_new_controller_finishes_what_another_began(world, loaded):
    """The first controller was killed when `loaded` of the three steps and the ensemble were loaded."""
    world.serve("m", "m")
    world.write("m@1", "m")
    for name in [*(f"m@1-{stage}" for stage in STAGES), "m"][:loaded]:
        world.triton.load(name)
    world.done()
    world.changes.close()
    world.new_controller()
    world.tick()
    assert world.triton.steps_behind("m") == "m@1"
    assert len(world.done()) == 4 - loaded
    world.tick()
    world.tick(3)
    assert world.done() == unloads("m")


def test_a_new_controller_completes_a_pending_removal(world):
    world.serve("m", "m")
    world.remove("m")
    world.changes.close()
    world.new_controller()
    world.tick()
    world.tick()
    world.tick(3)
    assert world.done() == ["unload m", *unloads("m")]


def test_old_step_directories_are_removed_after_a_tritonserver_restart(world):
    world.serve("m", "m")
    world.write("m@1", "m")
    world.triton.states.clear()
    world.triton.behind.clear()
    for name in [*(f"m@1-{stage}" for stage in STAGES), "m"]:
        world.triton.load(name)
    world.done()
    world.changes.start_anew()
    world.tick()
    assert world.done() == []
    world.tick()
    world.tick(3)
    assert not (world.repository / "m-inference").exists()
    assert world.changes.serving == {"m": "m@1"}


def test_an_ensemble_that_a_swap_reverted_is_reloaded_before_its_steps_go(world):
    """Triton ends a swap by loading the ensembles as they were before it."""
    world.serve("m", "m")
    world.change(lambda: world.write("m@1", "m")).result(120)
    world.triton.behind["m"] = "m", world.triton.behind["m"][1]
    world.done()
    world.tick()
    world.tick(3)  # finds it out, and may already reload
    world.tick()
    assert world.triton.steps_behind("m") == "m@1"
    assert world.done() == ["load m"]
    world.tick()
    world.tick(3)
    assert world.done() == unloads("m")


def test_a_reverted_ensemble_is_reloaded_even_under_endless_requests(world):
    world.serve("m", "m")
    world.change(lambda: world.write("m@1", "m")).result(120)
    world.triton.behind["m"] = "m", world.triton.behind["m"][1]
    world.open["m-inference"] = 1
    for _ in range(8):
        world.tick(1)
    assert world.triton.steps_behind("m") == "m@1"
    assert world.changes.leaving(world.stages()) == {"m"}


def test_ensembles_are_not_touched_while_a_swap_is_under_way(world):
    world.serve("m", "m")
    may_end = threading.Event()
    world.triton.swap = lambda name, resident=False: may_end.wait(10)
    swap = world.swaps.evict("m", "asked for")
    change = world.change(lambda: world.write("m@1", "m"))
    wait_for(lambda: len(world.triton.done) == 3)
    assert not change.done()
    assert world.triton.steps_behind("m") == "m"
    may_end.set()
    change.result(120)
    swap.result(120)
    assert world.triton.steps_behind("m") == "m@1"


def test_a_model_unloaded_by_a_user_stays_unloaded_until_its_file_changes(world):
    world.serve("m", "m")
    for name in ("m", *(f"m-{stage}" for stage in STAGES)):
        world.triton.unload(name)
    world.done()
    world.changes.close()
    world.new_controller()
    for _ in range(5):
        world.tick(3)
    assert world.done() == []
    world.change(lambda: world.write("m@1", "m")).result(120)
    assert world.triton.steps_behind("m") == "m@1"


def test_without_a_tritonserver_it_waits(world):
    world.write("m", "m")
    world.triton.alive = False
    world.outcome = ServerError("must not be asked")
    for _ in range(5):
        world.tick(1)
    world.outcome = ChangeOutcome()
    world.triton.alive = True
    world.tick(2)
    assert world.triton.steps_behind("m") == "m"


def test_faulty_model_files_are_checked_again_periodically(world):
    """The weights of a model may arrive later."""
    world.serve("m", "m")
    world.outcome = ChangeOutcome(problems={"/m.yaml": "/m.yaml: weights: not there"})
    world.change().result(120)
    before = world.num_looks
    for _ in range(150):
        world.tick(1)
    assert world.num_looks == before + 2


def test_a_look_that_fails_is_repeated(world):
    world.write("m", "m")
    world.outcome = ServerError("reading the model files took too long")
    for _ in range(10):
        world.tick(1)
    assert world.num_looks == 4  # after 0, 1, 3 and 7 s
    world.outcome = ChangeOutcome()
    world.tick(10)
    assert world.triton.steps_behind("m") == "m"


def test_a_refusal_is_reported_and_changes_nothing(world):
    world.serve("m", "m")
    world.outcome = ChangeRefused("wrong", "tasks: Field required")
    with pytest.raises(ChangeRefused, match="tasks: Field required"):
        world.change().result(120)
    before = world.num_looks
    world.tick(60)
    assert world.done() == []
    assert world.num_looks == before


def test_a_server_without_a_list_of_what_it_serves_is_not_changed(tmp_path, world):
    changes = Changes(tmp_path / "other", world.triton, world.swaps)
    changes.tick(world.stages())
    assert changes.leaving(world.stages()) == set()
    with pytest.raises(ChangeRefused, match="start it with sie-triton serve of this version"):
        changes.add(b"").result(120)
    changes.close()


# --- files


def test_a_file_is_read_once_it_has_stood_still(world, tmp_path):
    looks = []
    world.render = lambda: looks.append(1)
    world.serve("m", "m")
    directory = tmp_path / "models"
    directory.mkdir()
    (directory / "a.yaml").symlink_to("nowhere")
    (directory / ".m.yaml").symlink_to("an editor's lock")
    world.tick(1)
    world.tick(1)
    looks.clear()
    for content in ("a", "ab", "abc"):
        (directory / "m.yaml").write_text(content)
        world.tick(1)
    assert looks == []
    world.tick(0.5)
    assert looks == []
    world.tick(0.5)
    assert looks == [1]
    world.tick(5)
    (directory / "ignored.txt").write_text("")
    world.tick(5)
    world.tick(5)
    assert looks == [1]
    (directory / "m.yaml").unlink()
    world.tick(1)
    world.tick(1)
    assert looks == [1, 1]
