"""Small files that a checkpoint leaves to another repository."""

from pathlib import Path

import pytest

from sie_triton.errors import LoadError
from sie_triton.models.weights import locate
from sie_triton.models.weights.locate import SMALL_FILES
from tests.support.hub import BIG, contents, load

LEAVING = {
    "of": {"config.json": b'{"uses": "org/other"}', "model.safetensors": BIG},
    "other": {"tokenizer.json": b"[2]"},
}


def of_other(directory: Path) -> dict[str, str]:
    return {} if (directory / "other").exists() else {"other": "org/other"}


def test_small_files_of_another_repository(hub, tmp_path):
    hub.put("org/name", LEAVING["of"])
    hub.put("org/other", {**LEAVING["other"], "model.safetensors": BIG, "README.md": b""})
    expected = {**LEAVING["of"], "other/tokenizer.json": b"[2]"}
    loaded = load(tmp_path, other_repositories=of_other)
    assert contents(loaded) == expected
    assert load(tmp_path, other_repositories=of_other) == loaded
    small = locate("hub://org/name", allow_hub=True, patterns=SMALL_FILES, other_repositories=of_other, cache=tmp_path)
    assert contents(small) == {name: each for name, each in expected.items() if name != "model.safetensors"}
    local = tmp_path / "local"
    local.mkdir()
    (local / "config.json").write_bytes(b"{}")
    found = locate(str(local), allow_hub=True, other_repositories=of_other, cache=tmp_path)
    assert contents(found) == {"config.json": b"{}", "other/tokenizer.json": b"[2]"}


def test_processes_that_share_a_pin_get_one_commit_of_the_other_repository(hub, tmp_path):
    hub.put("org/name", LEAVING["of"])
    hub.put("org/other", LEAVING["other"])
    pin = tmp_path / "m.revision"
    locate("hub://org/name", allow_hub=True, patterns=SMALL_FILES, pin=pin, other_repositories=of_other, cache=tmp_path)
    hub.put("org/other", {"tokenizer.json": b"[3]"})
    pinned, fresh = (load(tmp_path, other_repositories=of_other, pin=each) for each in (pin, tmp_path / "n.revision"))
    assert [(each / "other/tokenizer.json").read_bytes() for each in (pinned, fresh)] == [b"[2]", b"[3]"]


def test_an_unavailable_second_repository_is_reported(hub, tmp_path):
    hub.put("org/name", LEAVING["of"])
    said = (
        r"in the repository org/other and cannot be fetched: .*; or put them into a subdirectory other of the model's"
    )
    with pytest.raises(LoadError, match=said):
        load(tmp_path, other_repositories=of_other)
    hub.put("org/other", LEAVING["other"])
    load(tmp_path, other_repositories=of_other)
    assert contents(load(tmp_path, other_repositories=of_other, allow_hub=False))["other/tokenizer.json"] == b"[2]"
