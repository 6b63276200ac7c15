"""The tokenizers in a model's directory are made once, and put over its files."""

import errno
import json
import os
import signal
from pathlib import Path
from threading import Thread

import pytest

from sie_triton.errors import LoadError
from sie_triton.models.inputs.tokenizer import open_tokenizer
from sie_triton.pipeline.stages import tokenizer_files
from sie_triton.pipeline.stages.tokenizer_files import naming, overlay, with_tokenizers
from sie_triton.pipeline.worker import handle
from sie_triton.pipeline.worker.handle import write_tokenizer
from sie_triton.pipeline.worker.messages import WriteTokenizer
from tests.support.stages import spec


class Writer:
    """Writes what the order says in place of a tokenizer, and counts."""

    def __init__(self) -> None:
        self.orders: list[WriteTokenizer] = []

    def __call__(self, order: WriteTokenizer) -> None:
        self.orders.append(order)
        (order.target / "tokenizer.json").write_text(f"{len(self.orders)}")
        (order.target / "tokenizer_config.json").write_text('{"pad_token": "[P]"}')


@pytest.fixture
def model(tmp_path) -> Path:
    directory = tmp_path / "model"
    (directory / "part").mkdir(parents=True)
    for name, content in {
        "config.json": {},
        "tokenizer.json": {},
        "tokenizer_config.json": {"chat_template": "x", "pad_token": "<p>"},
        "modules.json": [
            {"type": "sentence_transformers.models.Transformer", "path": ""},
            {"type": "sentence_transformers.sparse_encoder.models.SparseStaticEmbedding", "path": "part"},
        ],
        "part/vocab.txt": "a",
    }.items():
        (directory / name).write_text(json.dumps(content))
    (directory / "model.safetensors").write_bytes(b"weights")
    return directory


def test_the_librarys_files_replace_those_of_each_tokenizer(model, tmp_path):
    write = Writer()
    made = overlay(model, tmp_path / "cache", write)
    assert {tuple(sorted(order.files)) for order in write.orders} == {
        ("config.json", "tokenizer.json", "tokenizer_config.json"),
        ("vocab.txt",),
    }
    assert {(made / "tokenizer.json").read_text(), (made / "part/tokenizer.json").read_text()} == {"1", "2"}
    assert (made / "model.safetensors").read_bytes() == b"weights"
    settings = json.loads((made / "tokenizer_config.json").read_text())
    assert settings == {"chat_template": "x", "pad_token": "[P]"}


def test_a_tokenizer_is_made_once_for_each_state_of_its_files_and_of_the_library(model, tmp_path, monkeypatch):
    write, cache = Writer(), tmp_path / "cache"
    made = overlay(model, cache, write)
    (model / "model.safetensors").write_bytes(b"others")
    assert overlay(model, cache, write) == made
    assert len(write.orders) == 2
    (model / "tokenizer_config.json").write_text('{"truncation_side": "left"}')
    assert overlay(model, cache, write) != made
    assert len(write.orders) == 3
    overlay(model, cache, write, append_eos=True)
    assert len(write.orders) == 5
    monkeypatch.setattr(tokenizer_files, "version", lambda package: "another")
    overlay(model, cache, write)
    assert len(write.orders) == 7


def test_a_file_that_changes_while_its_tokenizer_is_made(model, tmp_path):
    """Otherwise another model with the former files would get this tokenizer."""
    before = (model / "tokenizer_config.json").read_text()
    seen = []

    def write(order):
        (model / "tokenizer_config.json").write_text("{}")
        seen.append(order.files["tokenizer_config.json"].read_text() if "tokenizer_config.json" in order.files else "")
        Writer()(order)

    overlay(model, tmp_path / "cache", write)
    assert before in seen


def test_a_directory_without_a_tokenizer_stays_as_it_is(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    assert overlay(tmp_path, tmp_path / "cache", Writer()) == tmp_path


def test_a_tokenizer_that_the_library_refuses_fails_the_model_once_it_is_opened(model, tmp_path):
    def refuse(order):
        raise LoadError("no such class", "unsupported")

    made = overlay(model, tmp_path / "cache", refuse)
    with pytest.raises(LoadError, match="no such class") as error:
        open_tokenizer(made)
    assert error.value.reason == "unsupported"


def test_a_large_file_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_files, "MAX_BYTES", 1)
    write = Writer()
    with pytest.raises(LoadError) as error:
        open_tokenizer(overlay(model, tmp_path / "cache", write))
    assert (error.value.reason, write.orders) == ("unsupported", [])


def test_a_directory_of_very_many_files_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_files, "MAX_FILES", len([path for path in model.rglob("*") if path.is_file()]))
    overlay(model, tmp_path / "cache", Writer())
    (model / "part" / "one more").touch()
    with pytest.raises(LoadError) as error:
        overlay(model, tmp_path / "cache", Writer())
    assert error.value.reason == "unsupported"


def test_links_to_directories_stay_and_other_tokenizers_are_not_made(model, tmp_path):
    """A trainer leaves a tokenizer in each of its checkpoints."""
    elsewhere = tmp_path / "pooling"
    elsewhere.mkdir()
    (elsewhere / "config.json").write_text("{}")
    (model / "1_Pooling").symlink_to(elsewhere)
    for number in range(30):
        (model / f"checkpoint-{number}").mkdir()
        (model / f"checkpoint-{number}" / "tokenizer.json").write_text("its own")
    (model / "tokenizer.refused.json").write_text('{"message": "not ours", "reason": "odd"}')
    write = Writer()
    made = overlay(model, tmp_path / "cache", write)
    assert (made / "1_Pooling" / "config.json").read_text() == "{}"
    assert (made / "checkpoint-7" / "tokenizer.json").read_text() == "its own"
    assert (len(write.orders), (made / "tokenizer.refused.json").exists()) == (2, False)


def test_a_directory_where_nothing_can_be_stored_is_not_used(minilm_directory, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenizer_files, "temporary_directory", lambda: tmp_path)
    monkeypatch.setattr(tokenizer_files, "write_tokenizer", lambda order, **_: Writer()(order))
    of = spec(weights=str(minilm_directory), runtime=spec().runtime.__class__(cache_dir="/proc/nothing"))
    assert tmp_path in with_tokenizers(of, minilm_directory, tmp_path, print).parents
    monkeypatch.setattr(tokenizer_files, "temporary_directory", lambda: Path("/proc"))
    with pytest.raises(LoadError):
        with_tokenizers(of, minilm_directory, tmp_path, print)


@pytest.mark.parametrize(("code", "reason"), [(errno.ENOSPC, "disk full"), (errno.EIO, "failed")])
def test_a_full_disk_is_the_reason_why_a_tokenizer_is_not_stored(minilm_directory, tmp_path, monkeypatch, code, reason):
    def write(order, **_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tokenizer_files, "write_tokenizer", write)
    of = spec(weights=str(minilm_directory), runtime=spec().runtime.__class__(cache_dir=str(tmp_path / "cache")))
    with pytest.raises(LoadError) as caught:
        with_tokenizers(of, minilm_directory, tmp_path, print)
    assert caught.value.reason == reason


def test_messages_name_the_models_directory():
    with (
        pytest.raises(LoadError, match=r"^/models/a/config\.json is missing$") as error,
        naming(Path("/models/a"), Path("/cache/1")),
    ):
        raise LoadError("/cache/1/config.json is missing", "not found")
    assert error.value.reason == "not found"


def test_a_process_makes_it_where_there_is_no_fork_server(tmp_path, minilm_directory):
    said = []
    of = spec(weights=str(minilm_directory), runtime=spec().runtime.__class__(cache_dir=str(tmp_path / "cache")))
    made = with_tokenizers(of, minilm_directory, tmp_path, said.append)
    assert made != minilm_directory
    assert open_tokenizer(made).encode("ships sail").ids == [101, 3719, 9498, 102]
    again = with_tokenizers(of, minilm_directory, tmp_path / "nowhere", said.append)
    assert again == made


def test_a_process_that_dies_fails_the_tokenizer(tmp_path, minilm_directory, monkeypatch):
    """As where its files take more memory or time than it may use."""
    begin = handle.begin

    def doomed(*arguments):
        child, ends = begin(*arguments)
        Thread(target=os.kill, args=(child.pid, signal.SIGKILL)).start()
        return child, ends

    monkeypatch.setattr(handle, "begin", doomed)
    order = WriteTokenizer({"tokenizer.json": minilm_directory / "tokenizer.json"}, tmp_path, {})
    with pytest.raises(LoadError, match="SIGKILL"):
        write_tokenizer(order, tmp_path, lambda: None)
