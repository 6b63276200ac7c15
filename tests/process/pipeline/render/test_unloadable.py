"""Warnings of `serve` at its start, and the model of its example request."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest

from sie_triton.models.catalog import load_file
from sie_triton.models.weights import locate
from sie_triton.models.weights.limits import LIMITS
from sie_triton.models.weights.locate import MODEL_FILES, SMALL_FILES
from sie_triton.pipeline.render import refresh
from sie_triton.pipeline.render.unloadable import MAX_NAMED, causes, warnings_of
from sie_triton.server.serve import example, to_try
from sie_triton.settings import read_settings
from tests.conftest import model_file, tiny_model_file
from tests.support.hub import MODEL
from tests.support.stages import spec


def of_hub(*names: str):
    return [spec(model=name, weights=f"hub://{name}") for name in names]


def test_missing_weights_and_environments_are_warned_of(tmp_path, tiny_directory):
    gone = spec(model="my/gone", weights=str(tmp_path / "gone"))
    here = spec(model="my/here", weights=str(tiny_directory))
    apart = spec(model="my/apart", weights=str(tiny_directory), environment="nowhere")
    found = causes(read_settings(environments_dir=tmp_path), [gone, here, apart])
    assert sorted(model for models in found.values() for model in models) == ["my/apart", "my/gone"]
    lines = sorted(warnings_of(found))
    assert lines[0].startswith(
        "warning: my/apart: requests fail until this is fixed: environment nowhere: does not exist in"
    )
    assert lines[1] == (
        f"warning: my/gone: requests fail until this is fixed: weights: {tmp_path}/gone is not a directory"
    )


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_directory_that_lacks_a_file_is_warned_of(tmp_path, tiny_directory, name):
    directory = tmp_path / "weights"
    shutil.copytree(tiny_directory, directory)
    assert causes(read_settings(), [spec(weights=str(directory), family="sentence_transformer")]) == {}
    (directory / name).unlink()
    ((cause, _),) = causes(read_settings(), [spec(weights=str(directory), family="sentence_transformer")]).items()
    assert name in cause


def test_an_unreachable_hub_is_queried_once_and_reported_once(hub):
    for name, patterns in (("org/cached", MODEL_FILES), ("org/0", SMALL_FILES)):
        hub.put(name, MODEL)
        locate(f"hub://{name}", allow_hub=True, patterns=patterns)
    hub.silent = True
    hub.asked.clear()
    found = causes(read_settings(), of_hub("org/0", "org/cached", "org/a", *(f"org/{i}" for i in range(1, 9))))
    ((cause, models),) = found.items()
    assert "org/0" in cause
    assert "org/cached" not in models
    assert hub.num_asked("/api/") <= 1
    assert len(models) == 10
    (line,) = warnings_of(found)
    assert line.startswith(f"warning: org/0, org/a, org/1, org/2, org/3 and {10 - MAX_NAMED} more: requests fail")


def test_serve_warns_of_a_model_of_the_hub_that_it_cannot_reach(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(refresh, "build_hook", lambda _: None)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")
    first = refresh.start(read_settings(data_dir=tmp_path, device="cpu"), ["BAAI/bge-m3"])
    (line,) = [line for line in first.outcome.warnings if "BAAI/bge-m3" in line]
    assert re.match("warning: BAAI/bge-m3: requests fail until this is fixed: .* hub cannot be reached", line)
    assert "BAAI/bge-m3" in first.unloadable


def test_models_missing_on_the_hub_are_reported_without_downloads(hub):
    hub.put("org/name", MODEL)
    found = causes(read_settings(), of_hub("org/name", "org/none"))
    assert {cause: list(models) for cause, models in found.items()} == {
        "weights: the hub has no org/none, or HF_TOKEN does not give access to it": ["org/none"]
    }
    assert hub.num_asked("resolve") == 0


def test_the_number_of_hub_queries_is_limited(hub):
    names = [f"org/{i}" for i in range(3 * LIMITS.max_hub_questions)]
    for name in names:
        hub.put(name, MODEL)
    assert causes(read_settings(), of_hub(*names)) == {}
    assert hub.num_asked("/api/") == LIMITS.max_hub_questions


@pytest.mark.parametrize("small_files_are_here", [False, True])
def test_uncached_weights_are_reported_as_unloadable_without_the_hub(hub, small_files_are_here):
    hub.put("org/name", MODEL)
    if small_files_are_here:
        locate("hub://org/name", allow_hub=True, patterns=SMALL_FILES)
    found = causes(read_settings(hf_fallback=False), of_hub("org/name"))
    (cause,) = found
    assert "org/name" in cause
    assert "SIE_HF_FALLBACK" in cause


def test_the_example_prefers_a_loadable_model(tmp_path, tiny_directory):
    for name in ("gone", "here"):
        (tmp_path / f"{name}.yaml").write_text(tiny_model_file(f"my/{name}", tiny_directory))
    models = [load_file(tmp_path / f"{name}.yaml") for name in ("gone", "here")]
    first = SimpleNamespace(models=models, unloadable={"my/gone"})
    assert to_try(first).sie_id == "my/here"
    first.unloadable = {"my/gone", "my/here"}
    assert to_try(first).sie_id == "my/gone"


@pytest.mark.parametrize(
    ("dims", "asked"),
    [({"sparse": {"dim": 30522}, "dense": {"dim": 64}}, "dense"), ({"sparse": {"dim": 30522}}, "sparse")],
)
def test_the_example_asks_for_one_output(tmp_path, tiny_directory, dims, asked):
    path = tmp_path / "model.yaml"
    path.write_text(model_file("my/m", tiny_directory, "bge_m3", {"encode": dims}))
    command = example(load_file(path).resolve(read_settings().runtime), "http://x:1")
    assert json.loads(command.partition("-d '")[2].removesuffix("'"))["outputs"] == [{"name": asked}]


def test_cached_weights_are_loadable_without_the_hub(hub):
    hub.put("org/name", MODEL)
    locate("hub://org/name", allow_hub=True, patterns=MODEL_FILES)
    assert causes(read_settings(hf_fallback=False), of_hub("org/name")) == {}
