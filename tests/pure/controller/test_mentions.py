"""Known models that requests name: which may be served, which wait, and which leave for them; the clock is a fake."""

import pytest

from sie_triton.controller import mentions as module
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.mentions import SEE_KNOWN, Mentions
from sie_triton.errors import ModelLoading, ServerError
from sie_triton.records.change import ChangeRefused
from sie_triton.records.known_file import KnownFile, write_known
from sie_triton.records.serving_file import Served, Serving
from tests.support.changing import World
from tests.support.clocks import Clock

LIMITS = ControllerLimits()
KNOWN = ["org/a", "org/b", "org/c", "BAAI/bge-m3"]
SETTINGS = {"serve_known": True, "allow_any_model": False, "max_mentioned_models": 2}


@pytest.fixture
def clock(monkeypatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "monotonic", made)
    monkeypatch.setattr(module, "monotonic_ns", lambda: int(made.now * 1e9))
    return made


@pytest.fixture
def mentions(tmp_path, clock) -> Mentions:
    write_known(tmp_path, dict.fromkeys(KNOWN, "{}"))
    return Mentions(KnownFile(tmp_path))


def serving(**settings):
    return Serving((), SETTINGS | settings, "/", models={"own/served": Served("/m.yaml", "")})


def state(used_ns, *, is_busy=False, kind="cold"):
    fields = {"record": {"last_used_ns": used_ns}, "is_busy": is_busy, "state": kind, "is_resident": kind == "resident"}
    return type("State", (), fields)


MORE = f"; {SEE_KNOWN}"


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("BAAI/bge-m4", {}, "BAAI/bge-m4 is not served; similar names: BAAI/bge-m3" + MORE),
        ("own/serve", {}, "own/serve is not served; similar names: own/served" + MORE),
        ("org/a", {"serve_known": False}, "org/a is not served"),
        ("x/y", {"allow_any_model": True, "model_filter": "org/*"}, "x/y is not served" + MORE),
    ],
)
def test_a_name_that_may_not_be_served_is_refused_at_once(mentions, name, settings, reason):
    with pytest.raises(ChangeRefused) as refused:
        mentions.ask(name, serving(**settings))
    assert str(refused.value) == reason
    assert not mentions.are_due()


def test_any_name_may_be_on_the_hub_if_that_is_allowed(mentions):
    mentions.ask("x/y", serving(allow_any_model=True))
    assert list(mentions.take(9)) == ["x/y"]


def test_a_name_is_not_refused_before_the_known_models_are_listed(tmp_path, clock):
    early = Mentions(KnownFile(tmp_path))
    early.ask("org/never", serving())
    assert list(early.take(9)) == ["org/never"]


def test_those_who_ask_for_one_name_share_its_future(mentions):
    first, other = mentions.ask("org/a", serving()), mentions.ask("org/b", serving())
    assert mentions.ask("org/a", serving()) is first
    assert mentions.take(1) == {"org/a": first}
    assert mentions.take(9) == {"org/b": other}


def test_a_name_that_nobody_asks_for_any_more_is_dropped(mentions, clock):
    dropped, kept = mentions.ask("org/a", serving()), mentions.ask("org/b", serving())
    clock.now += LIMITS.forget_name_s - 1
    mentions.ask("org/b", serving())
    clock.now += 2
    assert mentions.take(9) == {"org/b": kept}
    with pytest.raises(ModelLoading, match="waits to be served; retry"):
        dropped.result(0)


def test_the_number_of_names_that_wait_is_bounded(mentions):
    for i in range(LIMITS.max_waiting_names):
        mentions.ask(f"x/{i}", serving(allow_any_model=True))
    with pytest.raises(ModelLoading, match=f"{LIMITS.max_waiting_names} other models wait"):
        mentions.ask("org/a", serving())
    mentions.ask("x/0", serving(allow_any_model=True))


def test_after_a_pause_names_are_due_again(mentions, clock):
    mentions.ask("org/a", serving())
    assert mentions.are_due()
    mentions.pause(3)
    assert not mentions.are_due()
    clock.now += 3
    assert mentions.are_due()


def test_a_name_that_could_not_be_served_is_refused_for_a_while(mentions, clock):
    assert str(mentions.refuse("org/a", "no family")) == "no family"
    with pytest.raises(ChangeRefused, match="no family"):
        mentions.ask("org/a", serving())
    clock.now += LIMITS.refuse_name_s + 1
    mentions.ask("org/a", serving())


def test_room_is_made_by_models_that_have_stayed_and_are_not_busy(mentions, clock):
    for name in ("org/a", "org/b"):
        mentions.served(name)
    states = {"org__a": state(5), "org__b": state(4, is_busy=True)}
    assert mentions.room_for(["org/c"], ["org/a", "org/b"], 2, states) == ([], [])
    clock.now += LIMITS.min_stay_s
    assert mentions.room_for(["org/c", "org/d"], ["org/a", "org/b"], 2, states) == (["org/c"], ["org/a"])
    assert mentions.room_for(["org/c"], ["org/a"], 2, states) == (["org/c"], [])


def test_cold_models_leave_before_those_in_memory(mentions):
    states = {
        "org__a": state(1, kind="resident"),
        "org__b": state(3),
        "org__c": state(2),
        "org__d": state(0, is_busy=True),
    }
    served = ["org/a", "org/b", "org/c", "org/d"]
    assert mentions.room_for(["x/1", "x/2", "x/3"], served, 4, states)[1] == ["org/c", "org/b", "org/a"]


def test_a_model_that_loads_does_not_leave_and_one_that_never_started_does(mentions):
    states = {"org__a": state(0, kind="loading")}
    assert mentions.room_for(["org/c"], ["org/a"], 1, states) == ([], [])
    assert mentions.room_for(["org/c"], ["org/b"], 1, states) == (["org/c"], ["org/b"])


# --- with Triton


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World(tmp_path, monkeypatch)
    Serving((), SETTINGS | {"data_dir": str(tmp_path)}, str(tmp_path)).write()
    write_known(tmp_path, dict.fromkeys(KNOWN, "{}"))
    made.new_controller()
    made.serve("m", "m")
    yield made
    made.changes.close()
    made.swaps.close()


def test_a_mentioned_model_is_brought_into_service(world):
    world.once = lambda: world.write("org__a@1", "org__a")
    assert world.changes.mention("org/a").result(60) is None
    assert world.triton.steps_behind("org__a") == "org__a@1"


def test_a_model_that_triton_does_not_load_is_reported(world):
    world.once = lambda: world.write("org__a@1", "org__a")
    world.triton.broken.add("org__a@1-inference")
    with pytest.raises(ServerError, match="Triton: no such thing"):
        world.changes.mention("org/a").result(60)


def test_a_name_that_the_catalog_refuses_is_reported(world):
    world.outcome.unknown["org/a"] = "profiles.default.adapter_path: is not served by this version"
    with pytest.raises(ChangeRefused, match="is not served by this version"):
        world.changes.mention("org/a").result(60)


def test_a_fault_reaches_all_who_wait(world):
    world.outcome = ServerError("reading the model files took too long")
    for future in [world.changes.mention(name) for name in ("org/a", "org/a", "org/b")]:
        while not future.done():
            world.tick(1)
        with pytest.raises(ServerError, match="took too long"):
            future.result(0)
