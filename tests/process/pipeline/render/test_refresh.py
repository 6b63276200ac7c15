"""A running server's repository follows its model files; a faulty model file affects no other."""

import os
import pathlib
import re
import stat
from dataclasses import replace
from importlib import import_module

import pytest

from sie_triton.contract.spec import ModelSpec
from sie_triton.controller.repository import look
from sie_triton.controller.repository import refresh as refresh_in_child
from sie_triton.errors import CatalogError, ServerError
from sie_triton.models.catalog import load, recognise
from sie_triton.pipeline.render.known import known_names
from sie_triton.pipeline.render.pbtxt import from_text
from sie_triton.pipeline.render.repository import all_ensembles
from sie_triton.records.known_file import FILE, KnownFile
from sie_triton.settings import read_settings
from tests.support import hostile
from tests.support.lora_families import set_takes_loras
from tests.support.refreshing import STAGES, RefreshedServer, model_file


def inodes(directory, pattern):
    return {path.stat().st_ino for path in directory.glob(pattern)}


def test_a_changed_file_gets_new_steps_and_other_models_stay_unchanged(server):
    before = inodes(server.repository, "test__b*/config.pbtxt")
    serving = server.serving
    since = replace(serving.models["test/b"], changed_at="2026-01-01T00:00:00+00:00")
    serving.updated(models={**serving.models, "test/b": since}).write()
    assert server.steps("test__a") == "test__a"
    server.file("a", 128)
    outcome = server.refresh()
    assert (outcome.added, outcome.changed, outcome.removed, outcome.problems) == ([], ["test__a"], [], {})
    assert server.steps("test__a") == "test__a@1"
    assert all((server.repository / f"test__a-{stage}").is_dir() for stage in STAGES)
    assert inodes(server.repository, "test__b*/config.pbtxt") == before
    assert server.serving.models["test/b"] == since
    server.file("a", 256)
    server.file("b", 256)
    assert server.refresh().changed == ["test__a", "test__b"]
    assert {server.steps("test__a"), server.steps("test__b")} == {"test__a@2", "test__b@2"}


def test_steps_of_a_new_revision_are_cold_and_precompiled(server):
    """Otherwise Triton would wait for weights that the old steps still hold, and load each step twice."""
    server.file("a", 128)
    server.refresh()
    inference = from_text((server.repository / "test__a@1-inference" / "config.pbtxt").read_text())
    assert inference.parameters["generation"].string_value == "1"
    assert list((server.repository / "test__a@1-inference" / "1" / "__pycache__").glob("model.*.pyc"))


@pytest.mark.parametrize(
    "make", [os.mkfifo, hostile.link_to("/dev/zero"), hostile.huge, pathlib.Path.mkdir, hostile.link_to("nowhere")]
)
def test_what_is_no_model_file_holds_up_no_other_one(server, make):
    make(path := server.models_dir / "c.yaml")
    server.file("b", 128)
    outcome = server.refresh()
    assert (outcome.changed, list(outcome.problems)) == (["test__b"], [str(path)])
    assert outcome.problems[str(path)].startswith(f"{path}: ")


def test_an_unexpected_fault_of_a_model_file_holds_up_no_other_one(server, monkeypatch, caplog):
    path, read = server.file("c"), load.read_yaml
    monkeypatch.setattr(load, "read_yaml", lambda text: read(text) if "test/c" not in text else 1 / 0)
    server.file("b", 128)
    outcome = server.refresh()
    assert (outcome.changed, list(outcome.problems)) == (["test__b"], [str(path)])
    assert str(path) in caplog.text


def test_a_change_without_effect_renders_nothing(server):
    server.file("a").write_text("# a comment\n" + model_file("test/a"))
    for _ in range(2):
        outcome = server.refresh()
        assert (outcome.added, outcome.changed, outcome.removed) == ([], [], [])
    assert server.serving.revision == 0


def test_tasks_come_and_go_with_their_ensembles(server):
    server.file("a", score=True)
    assert server.refresh().changed == ["test__a"]
    assert all_ensembles(server.repository) == ["test__a", "test__a-score", "test__b"]
    assert server.steps("test__a-score") == server.steps("test__a") == "test__a@1"
    server.file("a")
    assert server.refresh().changed == ["test__a"]
    assert all_ensembles(server.repository) == ["test__a", "test__b"]


def test_a_model_comes_and_goes_with_its_file(server):
    path = server.file("c")
    assert server.refresh().added == ["test__c"]
    assert server.serving.models["test/c"].source == str(path)
    path.unlink()
    assert server.refresh().removed == ["test__c"]
    assert all_ensembles(server.repository) == ["test__a", "test__b"]
    # requests in progress need them
    assert (server.repository / "test__c@1-inference").is_dir()
    server.file("c")
    assert server.refresh().added == ["test__c"]
    assert server.steps("test__c") == "test__c@2"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("sie_id: [", "not valid YAML"),
        (model_file("test/a", unknown=1), "unknown: unknown key"),
        (model_file("test/a", inputs={"image": True}), "inputs.image: true cannot be served"),
        (model_file("test/a", weights_path="/nowhere"), "weights: /nowhere is not a directory"),
        (model_file("test/a", profiles={"default": {"adapter_path": "unittest.__main__:x"}}), "is no family"),
        (model_file("test/a", profiles={"default": {"adapter_path": "../x:Y"}}), "is no family"),
    ],
)
def test_a_model_is_still_served_after_its_file_becomes_invalid(server, wrong, said):
    path = server.models_dir / "a.yaml"
    path.write_text(wrong)
    server.file("b", 128)
    server.file("c")
    outcome = server.refresh()
    assert outcome.problems[str(path)].startswith(f"{path}: ")
    assert said in outcome.problems[str(path)]
    assert (outcome.added, outcome.changed, outcome.removed) == (["test__c"], ["test__b"], [])
    assert server.steps("test__a") == "test__a"
    assert server.serving.models["test/a"].source == str(path)
    assert said in server.serving.problems[str(path)]
    path.unlink()
    outcome = server.refresh()
    assert (outcome.problems, outcome.removed) == ({}, ["test__a"])


def test_an_unreadable_models_dir_removes_no_model(server):
    server.models_dir.rename(server.root / "elsewhere")
    outcome = server.refresh()
    assert outcome.removed == []
    assert "cannot be read (No such file or directory)" in outcome.problems[str(server.models_dir)]
    (server.root / "elsewhere").rename(server.models_dir)
    assert server.refresh().problems == {}


def test_a_new_file_whose_weights_are_not_there_yet_is_served(server):
    """As at start-up, its requests get an error until the weights are there; then the model loads."""
    server.file("c", weights_path="/nowhere")
    assert server.refresh().added == ["test__c"]


def test_of_two_files_with_one_name_the_served_file_wins(server):
    other = server.models_dir / "0.yaml"
    other.write_text(model_file("test/a", 128))
    outcome = server.refresh()
    assert outcome.changed == []
    (told,) = outcome.problems.items()
    assert told[0] == str(other)
    assert told[1].startswith(f"{server.models_dir}/a.yaml and {other}: both would be served as test__a; ")
    (server.models_dir / "a.yaml").unlink()
    assert server.refresh().changed == ["test__a"]


def test_an_interrupted_change_is_rendered_again(server):
    """The child was killed between the two ensembles."""
    server.file("a", score=True)
    server.refresh()
    server.file("a", 128, score=True)
    score = (server.repository / "test__a-score" / "config.pbtxt").read_text()
    server.refresh()
    (server.repository / "test__a-score" / "config.pbtxt").write_text(score)
    server.refresh()
    assert server.steps("test__a-score") == server.steps("test__a") == "test__a@3"


def test_only_named_models_follow_their_files(server):
    server.start("test/a")
    server.file("b", 128)
    server.file("c")
    assert server.refresh().changed == []
    server.file("a", 128)
    assert server.refresh().changed == ["test__a"]


def test_a_model_file_that_was_named_is_followed(server, tmp_path):
    path = tmp_path / "named.yaml"
    path.write_text(model_file("test/named"))
    server.start(str(path), "test/a")
    assert list(server.serving.models) == ["test/named", "test/a"]
    before = look(server.serving)
    path.write_text(model_file("test/named", 128))
    assert look(server.serving) != before
    assert server.refresh().changed == ["test__named"]
    path.write_text("sie_id: [")
    outcome = server.refresh()
    assert (outcome.removed, list(outcome.problems)) == ([], [str(path)])
    assert list(server.serving.models) == ["test/a", "test/named"]


def test_a_preloaded_model_can_be_removed(tmp_path):
    server = RefreshedServer(tmp_path, preload_models="test/a")
    path = server.file("a")
    server.file("b")
    server.start()
    path.unlink()
    outcome = server.refresh()
    assert (outcome.removed, outcome.problems) == (["test__a"], {})


def test_a_start_with_an_invalid_file_fails_with_the_reason(tmp_path):
    server = RefreshedServer(tmp_path)
    server.file("a").write_text("sie_id: [")
    with pytest.raises(CatalogError, match="not valid YAML"):
        server.start()


def test_no_secret_is_written(tmp_path):
    server = RefreshedServer(tmp_path, admin_token="s3cret", auth_mode="token", auth_tokens="t0ken,0ther")
    server.file("a")
    before = os.umask(0o022)
    try:
        server.start()
    finally:
        os.umask(before)
    written = server.data_dir / "serving.json"
    assert not {"s3cret", "t0ken", "0ther"} & set(re.findall(r"\w+", written.read_text()))
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    server.file("b")
    assert server.refresh().added == ["test__b"]


def test_a_refresh_does_not_read_the_settings_file(tmp_path, monkeypatch):
    server = RefreshedServer(tmp_path, auth_mode="token", auth_tokens="t0ken")
    server.file("a")
    monkeypatch.chdir(tmp_path)
    server.start()
    (tmp_path / "sie.yaml").write_text("auth_mode: token")  # the tokens came from the environment
    server.file("b")
    assert refresh_in_child(server.data_dir).added == ["test__b"]


def test_served_models_list_the_adapters_of_their_files(server, monkeypatch):
    server.file("a", loras={"banking": "org/x", "here": "/here"})
    server.refresh()
    loras = {name: each.loras for name, each in server.serving.models.items()}
    assert loras == {"test/a": {"banking": "hub://org/x", "here": "/here"}, "test/b": {}}
    set_takes_loras(monkeypatch, "multivector", False)
    server.file("a", 128)
    server.refresh()
    assert server.serving.models["test/a"].loras is None


# --- known models that requests name


@pytest.fixture
def limited(tmp_path):
    """A server of one model with two further files; all other known models are filtered out."""
    server = RefreshedServer(tmp_path, model_filter="test/*,BAAI/bge-small-en-v1.5")
    for name in ("a", "b", "c"):
        server.file(name)
    server.start("test/a")
    return server


def known(server):
    return {name: ModelSpec.from_json(text) for name, text in KnownFile(server.data_dir).specs().items()}


def test_the_known_models_are_listed_as_far_as_they_match(limited):
    assert KnownFile(limited.data_dir).specs() is None
    limited.refresh()
    assert sorted(known(limited)) == ["BAAI/bge-small-en-v1.5", "test/a", "test/b", "test/c"]
    assert known(limited)["BAAI/bge-small-en-v1.5"].dims == {"dense": 384}
    (limited.models_dir / "c.yaml").unlink()
    limited.refresh()
    assert "test/c" not in known(limited)


def test_a_server_that_serves_no_known_models_lists_none(tmp_path):
    server = RefreshedServer(tmp_path, serve_known=False)
    server.file("a")
    server.start()
    server.refresh()
    assert known(server) == {}


def test_all_known_models_have_names_for_serve(tmp_path):
    server = RefreshedServer(tmp_path, model_filter="test/*,BAAI/bge-m3")
    server.file("a")
    assert known_names(read_settings(**server.given)) == ["BAAI/bge-m3", "test/a"]


def test_mentioned_models_come_and_go_and_follow_their_files(limited):
    outcome = limited.refresh(mention=["test/b", "test/a", "BAAI/bge-small-en-v1.5", "test/never"])
    assert (outcome.added, outcome.changed) == (["test__b", "BAAI__bge-small-en-v1.5"], [])
    assert outcome.unknown["test/never"].startswith("test/never is not a known model")
    assert list(limited.serving.mentioned) == ["test/b", "BAAI/bge-small-en-v1.5"]
    limited.file("b", 128)
    assert limited.refresh().changed == ["test__b"]
    outcome = limited.refresh(mention=["test/c"], forget=["test/b"])
    assert (outcome.added, outcome.removed) == (["test__c"], ["test__b"])
    assert sorted(limited.serving.models) == ["BAAI/bge-small-en-v1.5", "test/a", "test/c"]
    assert limited.refresh().removed == []


def test_a_name_outside_of_the_filter_is_refused(limited):
    reason = "BAAI/bge-m3 may not be served here: SIE_MODEL_FILTER allows test/*, BAAI/bge-small-en-v1.5"
    assert limited.refresh(mention=["BAAI/bge-m3"]).unknown == {"BAAI/bge-m3": reason}


def test_a_client_cannot_name_a_path(limited, tmp_path):
    server = RefreshedServer(tmp_path / "any", allow_any_model=True, hf_fallback=False)
    server.file("a")
    server.start()
    names = ["/usr", "./models", "~/x", "a", "org/name@main", "-x/y"]
    unknown = server.refresh(mention=names).unknown
    assert list(unknown) == names
    assert all("neither a known model nor a hub id" in reason for reason in unknown.values())


def test_a_model_that_was_removed_is_not_served_when_a_request_names_it(limited):
    limited.refresh(mention=["test/b"])
    limited.refresh(remove="test__b")
    assert limited.serving.mentioned == ()
    assert "was removed from this server" in limited.refresh(mention=["test/b"]).unknown["test/b"]


def test_a_model_file_takes_the_place_of_a_mentioned_model(limited):
    name = "BAAI/bge-small-en-v1.5"
    limited.refresh(mention=[name])
    added = limited.refresh(add=model_file(name, dim=8).encode())
    assert (added.changed, added.refused) == (["BAAI__bge-small-en-v1.5"], "")
    assert limited.serving.mentioned == ()
    assert limited.refresh().problems == {}


def test_a_model_on_the_hub_is_recognised_once_and_kept(tmp_path, monkeypatch, minilm_directory):
    server = RefreshedServer(tmp_path, allow_any_model=True)
    server.file("a")
    server.start()
    config = recognise(minilm_directory, "org/on-hub", {"hf_id": "org/on-hub"})
    monkeypatch.setattr(import_module("sie_triton.models.catalog.select"), "from_hub", lambda name, **_: config)
    assert server.refresh(mention=["org/on-hub"]).added == ["org__on-hub"]
    monkeypatch.undo()
    assert (server.refresh().removed, "org/on-hub" in server.serving.models) == ([], True)
    assert server.refresh(forget=["org/on-hub"]).removed == ["org__on-hub"]
    assert "org/on-hub" not in server.serving.models


def test_models_to_preload_are_served_beside_the_others(tmp_path):
    server = RefreshedServer(tmp_path, preload_models="BAAI/bge-small-en-v1.5")
    server.file("a")
    server.start()
    assert sorted(server.serving.models) == ["BAAI/bge-small-en-v1.5", "test/a"]
    assert server.refresh().removed == []
    unknown = RefreshedServer(tmp_path / "unknown", preload_models="test/never", hf_fallback=False)
    unknown.file("a")
    with pytest.raises(CatalogError, match=r"^preload_models: test/never: no model file has this sie_id"):
        unknown.start()


def test_a_filter_chooses_from_the_starter_set_and_names_known_models(tmp_path):
    server = RefreshedServer(tmp_path, models_dir=None, model_filter="BAAI/bge-small-en-v1.5,intfloat/*")
    server.start()
    assert list(server.serving.models) == ["BAAI/bge-small-en-v1.5"]
    empty = RefreshedServer(tmp_path / "empty", models_dir=None, model_filter="intfloat/*")
    empty.start()
    assert dict(empty.serving.models) == {}


@pytest.mark.parametrize(("pattern", "is_served"), [("nobody/*", False), ("BAAI/bge-m4", False), ("BAAI/*", True)])
def test_a_filter_that_matches_no_known_model_is_refused(tmp_path, pattern, is_served):
    server = RefreshedServer(tmp_path, models_dir=None, model_filter=pattern)
    if is_served:
        server.start()
    else:
        with pytest.raises(CatalogError, match=f"^model_filter: {re.escape(pattern)}: matches no known model"):
            server.start()
    server = RefreshedServer(tmp_path / "any", models_dir=None, model_filter=pattern, allow_any_model=True)
    server.start()


def test_an_error_of_the_disk_reaches_who_asked_for_the_change(server):
    (server.data_dir / FILE).unlink(missing_ok=True)
    (server.data_dir / FILE).mkdir()
    with pytest.raises(ServerError, match=re.escape(f"/{FILE}'")):
        refresh_in_child(server.data_dir)
