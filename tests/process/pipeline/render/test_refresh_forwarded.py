"""Models that generate text come and go with their files, and Triton's repository has none of them."""

import pytest
import yaml

from sie_triton.contract.spec import ModelSpec
from sie_triton.pipeline.render.build import check_repository, write_repository
from sie_triton.pipeline.render.repository import all_ensembles
from sie_triton.records.known_file import FORWARDED, KnownFile
from sie_triton.settings import read_settings
from tests.support.refreshing import RefreshedServer

HTTPS = "https://gpu-host"


def chat_file(name="test/chat", url=HTTPS, **where):
    profiles = {"default": {"endpoint": {"url": url, **where}}}
    return yaml.safe_dump({"sie_id": name, "tasks": {"generate": {}}, "profiles": profiles})


def forwarded(server):
    """Return the URL of each forwarded model's endpoint."""
    specs = KnownFile(server.data_dir, FORWARDED).specs()
    return {name: ModelSpec.from_json(text).endpoint.url for name, text in specs.items()}


@pytest.fixture
def server(tmp_path):
    server = RefreshedServer(tmp_path)
    server.file("a")
    server.chat = server.models_dir / "chat.yaml"
    server.chat.write_text(chat_file())
    return server


def test_a_forwarded_model_has_no_ensemble(server):
    first = server.start()
    assert [model.sie_id for model in first.models] == ["test/a"]
    assert (forwarded(server), all_ensembles(server.repository)) == ({"test/chat": HTTPS}, ["test__a"])
    assert server.serving.models["test/chat"].source == str(server.chat)
    (server.models_dir / "a.yaml").unlink()
    assert server.start().models == []


def test_it_comes_changes_and_goes_with_its_file(server):
    server.start()
    outcome = server.refresh()
    assert (outcome.added, outcome.changed, outcome.removed) == ([], [], [])
    since = server.serving.models["test/chat"].changed_at
    server.chat.write_text(chat_file(url="http://other"))
    assert server.refresh().changed == ["test__chat"]
    server.chat.write_text("sie_id: [")
    assert list(server.refresh().problems) == [str(server.chat)]
    assert forwarded(server) == {"test/chat": "http://other"}
    assert server.serving.models["test/chat"].changed_at >= since
    server.chat.unlink()
    assert server.refresh().removed == ["test__chat"]
    assert forwarded(server) == {}
    server.chat.write_text(chat_file())
    assert server.refresh().added == ["test__chat"]


def test_a_file_may_begin_and_cease_to_be_forwarded(server):
    server.start()
    server.file("chat")
    assert server.refresh().added == ["test__chat"]  # in the repository
    assert (forwarded(server), all_ensembles(server.repository)) == ({}, ["test__a", "test__chat"])
    server.chat.write_text(chat_file())
    outcome = server.refresh()
    assert (outcome.changed, outcome.removed) == (["test__chat"], [])
    assert (forwarded(server), all_ensembles(server.repository)) == ({"test/chat": HTTPS}, ["test__a"])


def test_a_sent_file_is_forwarded_with_an_allowed_key_alone(server):
    server.start()
    refused = server.refresh(add=chat_file("test/sent", api_key_env="HOME").encode())
    assert (refused.refused, "SIE_API_KEY_VARIABLES" in refused.reason) == ("wrong", True)
    assert server.refresh(add=chat_file("test/sent").encode()).added == ["test__sent"]
    assert forwarded(server) == dict.fromkeys(["test/chat", "test/sent"], HTTPS)
    assert server.refresh(remove="test__sent").removed == ["test__sent"]
    assert list(forwarded(server)) == ["test/chat"]


def test_a_restarted_server_forwards_what_its_files_say(server):
    server.start()
    server.refresh(add=chat_file("test/sent").encode())
    server.chat.unlink()
    (server.serving.added_dir / "test__sent.yaml").write_text(chat_file("test/sent", api_key_env="HOME"))
    assert len(server.start().outcome.problems) == 1
    assert forwarded(server) == {}


def test_a_portable_repository_leaves_it_out(server, tmp_path):
    settings = read_settings(**server.given)
    warnings = write_repository(tmp_path / "r", settings, ["test/a", "test/chat"], hook=False)
    assert [line for line in warnings if line.startswith("not rendered: test/chat: ")]
    assert all_ensembles(tmp_path / "r") == ["test__a"]
    assert check_repository(tmp_path / "r", settings, ["test/a", "test/chat"]) == []
