"""A running server's repository follows its model files; a faulty model file affects no other."""

import os
import re
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sie_triton.controller.refresh import refresh as refresh_in_child
from sie_triton.controller.wanted import look
from sie_triton.errors import CatalogError
from sie_triton.loras import add, added_path, read
from sie_triton.render import refresh as module
from sie_triton.render.pbtxt import from_text
from sie_triton.render.refresh import refresh, start
from sie_triton.render.repository import all_ensembles
from sie_triton.serving.serving_file import CONFLICT, UNKNOWN, WRONG, read_serving, repository_of
from sie_triton.settings import read_settings
from tests.support.lora_families import set_takes_loras

STAGES = ("preprocess", "inference", "postprocess")


def model_file(model, max_sequence_length=64, dim=8, score=False, **more):
    tasks = {"encode": {"multivector": {"dim": dim}}, **({"score": {}} if score else {})}
    profile = {"adapter_path": "multivector"}
    content = {"sie_id": model, "weights_path": "/usr", "tasks": tasks, "profiles": {"default": profile}}
    return yaml.safe_dump({**content, "max_sequence_length": max_sequence_length, **more})


class Server:
    """Handles files like a launcher and its controller."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.root, self.data_dir, self.models_dir = root, root / "data", root / "models"
        self.models_dir.mkdir()
        self.repository = repository_of(self.data_dir)
        self.given = {"data_dir": self.data_dir, "models_dir": self.models_dir, "device": "cpu", **settings}

    def file(self, name: str, *arguments, **given) -> Path:
        path = self.models_dir / f"{name}.yaml"
        path.write_text(model_file(f"test/{name}", *arguments, **given))
        return path

    def start(self, *names: str):
        self.data_dir.mkdir(exist_ok=True)
        return start(read_settings(**self.given), names)

    def refresh(self, **change):
        return refresh(self.data_dir, **change)

    def steps(self, ensemble: str) -> str:
        """Return the common name of the ensemble's steps; check that all of them are there."""
        ((first, *_),) = [
            [step.model_name for step in from_text(path.read_text()).ensemble_scheduling.step]
            for path in [self.repository / ensemble / "config.pbtxt"]
        ]
        steps = first.rpartition("-")[0]
        assert all((self.repository / f"{steps}-{stage}" / "1" / "model.py").exists() for stage in STAGES)
        return steps

    @property
    def serving(self):
        return read_serving(self.data_dir)


def inodes(directory, pattern):
    return {path.stat().st_ino for path in directory.glob(pattern)}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No compiler, and each test stays where it is."""
    monkeypatch.setattr(module, "build_hook", lambda _: None)
    monkeypatch.setattr(os, "chdir", lambda _: None)


@pytest.fixture
def server(tmp_path) -> Server:
    made = Server(tmp_path)
    made.file("a")
    made.file("b")
    made.start()
    return made


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


# --- a model file that is sent


def test_a_file_that_is_sent_is_served_also_after_a_restart(server):
    outcome = server.refresh(add=model_file("test/new").encode())
    assert (outcome.model, outcome.added) == ("test__new", ["test__new"])
    source = server.data_dir / "models" / "test__new.yaml"
    assert server.serving.models["test/new"].source == str(source)
    outcome = server.refresh(add=model_file("test/new", 128).encode())
    assert (outcome.model, outcome.changed) == ("test__new", ["test__new"])
    again = server.start()
    assert [model.sie_id for model in again.models] == ["test/a", "test/b", "test/new"]
    assert again.models[-1].max_sequence_length == 128
    assert server.refresh(remove="test__new").removed == ["test__new"]
    assert not source.exists()


@pytest.mark.parametrize(
    ("text", "why", "said"),
    [
        (b"sie_id: x", WRONG, "tasks: Field required"),
        (b"\xff", WRONG, "not valid UTF-8"),
        (model_file("test/new", inputs={"image": True}).encode(), WRONG, "inputs.image: true cannot be served"),
        (model_file("test/new", weights_path="/nowhere").encode(), WRONG, "weights: /nowhere is not a directory"),
        (model_file("test/a").encode(), CONFLICT, "test/a is served from "),
    ],
)
def test_a_file_that_cannot_be_served_is_refused_with_its_faults(server, text, why, said):
    outcome = server.refresh(add=text)
    assert (outcome.refused, outcome.model) == (why, "")
    assert outcome.reason.startswith(said) or f"sie_id: {said}" in outcome.reason
    assert not list((server.data_dir / "models").glob("*"))
    assert "test/new" not in server.serving.models


def keyed(url: str, key: str) -> bytes:
    profile = {"adapter_path": "sentence_transformer", "endpoint": {"url": url, "api_key_env": key}}
    return model_file("test/new", tasks={"encode": {"dense": {"dim": 64}}}, profiles={"default": profile}).encode()


@pytest.mark.parametrize(
    ("allowed", "url", "key", "said"),
    [
        ("", "https://far", "DATABASE_PASSWORD", "an added model may not use DATABASE_PASSWORD"),
        ("FAR_*,OTHER", "https://far", "A_FAR_KEY", "an added model may not use A_FAR_KEY"),
        ("*", "https://far", "SIE_ADMIN_TOKEN", "must not begin with SIE_"),
        ("FAR_*", "http://far", "FAR_KEY", "endpoint.url: must begin with https"),
        ("FAR_*", "https://far", "FAR_KEY", ""),
        ("OTHER, FAR_KEY", "http://localhost:9", "FAR_KEY", ""),
    ],
)
def test_an_added_model_may_send_only_allowed_api_keys(tmp_path, tiny_directory, allowed, url, key, said):
    server = Server(tmp_path, api_key_variables=allowed)
    server.file("a")
    server.start()
    text = keyed(url, key).replace(b"/usr", bytes(tiny_directory))
    outcome = server.refresh(add=text)
    assert (outcome.refused, outcome.model) == ((WRONG, "") if said else ("", "test__new"))
    assert said in outcome.reason
    # A file of the operator's own may name any variable but the server's settings.
    (server.models_dir / "own.yaml").write_bytes(text.replace(b"test/new", b"test/own"))
    assert ("test__own" in server.refresh().added) is not key.startswith("SIE_")


def test_an_added_model_with_a_disallowed_key_is_not_restored(tmp_path, tiny_directory):
    server = Server(tmp_path, api_key_variables="FAR_KEY")
    server.file("a")
    server.start()
    server.refresh(add=keyed("https://far", "FAR_KEY").replace(b"/usr", bytes(tiny_directory)))
    server.given["api_key_variables"] = ""
    again = server.start()
    assert [model.sie_id for model in again.models] == ["test/a"]
    assert any("an added model may not use FAR_KEY" in line for line in again.outcome.warnings)


def test_an_added_file_that_is_wrong_at_the_start_is_reported(server):
    server.refresh(add=model_file("test/new").encode())
    (server.data_dir / "models" / "test__new.yaml").write_text("sie_id: [")
    (server.data_dir / "models" / "twin.yaml").write_text(model_file("test/a"))
    again = server.start()
    assert [model.sie_id for model in again.models] == ["test/a", "test/b"]
    told = "\n".join(again.outcome.warnings)
    assert "not served: " in told
    assert "test__new.yaml: not valid YAML" in told
    assert "twin.yaml: both would be served as test__a" in told


# --- what may be removed


def test_a_model_of_the_users_directory_cannot_be_removed_through_the_api(server):
    outcome = server.refresh(remove="test__a")
    assert outcome.refused == CONFLICT
    assert outcome.reason == f"test/a is served from {server.models_dir}/a.yaml; remove that file"
    assert server.refresh(remove="test__nope").refused == UNKNOWN


def test_a_removed_model_that_serve_named_returns_at_the_next_start(server):
    server.start("test/a", "test/b")
    assert server.refresh(remove="test__a").removed == ["test__a"]
    assert server.refresh().added == []
    assert set(server.serving.models) == {"test/b"}
    # another file may have taken its name meanwhile
    assert server.refresh(add=model_file("test/a", 128).encode()).added == ["test__a"]
    (server.data_dir / "models" / "test__a.yaml").unlink()
    assert {model.sie_id for model in server.start("test/a", "test/b").models} == {"test/a", "test/b"}


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


def test_a_model_that_was_recognised_in_a_directory_stays(tmp_path, tiny_directory):
    server = Server(tmp_path)
    server.start(str(tiny_directory))
    (name,) = server.serving.models
    assert server.refresh(add=model_file("test/new").encode()).added == ["test__new"]
    assert set(server.serving.models) == {name, "test/new"}
    assert server.refresh(remove=name).removed == [name]
    assert server.refresh().removed == []


def test_a_preloaded_model_can_be_removed(tmp_path):
    server = Server(tmp_path, preload_models="test/a")
    path = server.file("a")
    server.file("b")
    server.start()
    path.unlink()
    outcome = server.refresh()
    assert (outcome.removed, outcome.problems) == (["test__a"], {})


def test_a_start_with_an_invalid_file_fails_with_the_reason(tmp_path):
    server = Server(tmp_path)
    server.file("a").write_text("sie_id: [")
    with pytest.raises(CatalogError, match="not valid YAML"):
        server.start()


def test_no_secret_is_written(tmp_path):
    server = Server(tmp_path, admin_token="s3cret", auth_mode="token", auth_tokens="t0ken,0ther")
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
    server = Server(tmp_path, auth_mode="token", auth_tokens="t0ken")
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


def test_added_adapters_go_with_the_model_and_stay_with_its_next_revision(server):
    server.refresh(add=model_file("test/c").encode())
    paths = {name: added_path(server.data_dir / "loras", f"test/{name}") for name in "ac"}
    for path in paths.values():
        add(path, "banking", "hub://org/x")
    server.refresh(add=model_file("test/c", 128).encode())
    assert read(paths["c"]) == {"banking": "hub://org/x"}
    server.refresh(remove="test__c")
    assert (paths["c"].exists(), paths["a"].exists()) == (False, True)
    (server.models_dir / "a.yaml").unlink()  # perhaps by an editor that rewrites the file
    server.refresh()
    assert paths["a"].exists()
