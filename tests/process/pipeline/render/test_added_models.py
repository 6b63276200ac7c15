"""Models that are added to a running server and removed from it, and what may be added and removed."""

import pytest

from sie_triton.models.known_loras import add, added_path, read
from sie_triton.records.change import CONFLICT, UNKNOWN, WRONG
from tests.support.refreshing import RefreshedServer, model_file


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
        (b"sie_id: x", WRONG, "tasks: is missing"),
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
    server = RefreshedServer(tmp_path, api_key_variables=allowed)
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
    server = RefreshedServer(tmp_path, api_key_variables="FAR_KEY")
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


def test_a_model_that_was_recognised_in_a_directory_stays(tmp_path, tiny_directory):
    server = RefreshedServer(tmp_path)
    server.start(str(tiny_directory))
    (name,) = server.serving.models
    assert server.refresh(add=model_file("test/new").encode()).added == ["test__new"]
    assert set(server.serving.models) == {name, "test/new"}
    assert server.refresh(remove=name).removed == [name]
    assert server.refresh().removed == []


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
