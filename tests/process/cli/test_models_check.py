"""`sie-triton models check` finds faults that `serve` would refuse or that would fail requests."""

import re
import shutil
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from transformers import AutoModel

from sie_triton.cli import cli
from sie_triton.pipeline.render import refresh
from sie_triton.settings import read_settings
from tests.conftest import model_file
from tests.support.models import save_bert, save_causal, save_cross_encoder

DENSE = {"encode": {"dense": {"dim": 64}}}


# Changes to a model file that make `serve` refuse it.
REFUSED = {
    "dim": {"tasks": {"encode": {"dense": {"dim": 65}}}},
    "key": {"max_sequence_lenght": 5},
    "length": {"max_sequence_length": 0},
    "output": {"tasks": {"encode": {"sparse": {"dim": 5}}}},
    "input": {"inputs": {"text": True, "image": True}},
    "family": {"profiles": {"default": {"adapter_path": "sentence_transformr"}}},
    "profile": {"profiles": {"default": {"adapter_path": "sentence_transformer", "extends": "nowhere"}}},
    "source": {"hf_id": "org/name"},
    "first_twin": {"sie_id": "my/twin"},
    "second_twin": {"sie_id": "my/twin"},
}


@pytest.fixture
def weights(tmp_path, minilm_directory) -> Path:
    return save_bert(tmp_path / "weights", tokenizer=minilm_directory)


def check(path: Path, status: int = 0, *options: str) -> list[str]:
    result = CliRunner().invoke(cli, ["models", "check", str(path), *options], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.output.splitlines()


def written(path: Path, directory: Path, *, family: str = "sentence_transformer", tasks=DENSE, **more: object) -> Path:
    content = yaml.safe_load(model_file("my/model", directory, family, tasks)) | more
    path.write_text(yaml.safe_dump(content))
    return path


def cut_off(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def adapter(directory: Path) -> None:
    (directory / "adapter").mkdir()


@pytest.mark.parametrize(
    ("changes", "damage", "complaint"),
    [
        ({"tasks": {"encode": {"dense": {"dim": 65}}}}, None, r"tasks.encode.dense.dim: must be 64, .* \(given 65\)"),
        ({"weights_path": "/nowhere"}, None, "weights: /nowhere is not a directory"),
        ({}, cut_off, r"model\.safetensors: has \d+ bytes, but its header says \d+: it is truncated"),
        ({}, lambda path: (path / "model.safetensors").unlink(), r"has no model\.safetensors"),
        ({}, lambda path: (path / "tokenizer.json").write_text("{"), r"tokenizer\.json"),
        (
            {"environment": "nowhere"},
            None,
            "environment nowhere: does not exist in .*; create it: sie-triton env add nowhere",
        ),
        ({"loras": {"banking": "/nowhere"}}, None, "loras.banking: weights: /nowhere is not a directory"),
        (
            {"loras": {"banking": "./weights/model/adapter"}},
            adapter,
            "loras.banking: adapter_config.json is missing in ",
        ),
    ],
)
def test_a_fault_is_an_error_with_the_file_before_it(tmp_path, weights, monkeypatch, changes, damage, complaint):
    monkeypatch.chdir(weights)
    if damage:
        damage(weights)
    path = written(tmp_path / "model.yaml", weights, **changes)
    said = check(path, 1)
    assert said[-1] == "1 files, 1 invalid"
    (line,) = said[:-1]
    assert line.startswith(f"error: {path}: ")
    assert re.search(complaint, line), line


def test_weights_of_another_family_cause_a_warning(tmp_path, minilm_directory):
    """The mismatch is only a warning, because it may be intended."""
    directory = save_cross_encoder(tmp_path / "ce", minilm_directory)
    (directory / "modules.json").unlink()  # which says more than a warning: there is no pooling
    path = written(tmp_path / "model.yaml", directory)
    (line, last) = check(path)
    assert line.startswith(
        f"warning: {path}: adapter_path: {directory} is recognised as cross_encoder, which does score"
    )
    assert last == "1 files, 1 valid"


def test_two_files_of_one_directory_cannot_have_one_name(tmp_path, weights):
    first, second = (written(tmp_path / name, weights) for name in ("a.yaml", "b.yaml"))
    line, last = check(tmp_path, 1)
    assert line.startswith(
        f"error: {first} and {second}: both would be served as my__model; give one of them another sie_id"
    )
    assert last == "2 files, 1 invalid, 1 valid"
    (tmp_path / "other").mkdir()
    shutil.move(second, tmp_path / "other")
    said = CliRunner().invoke(cli, ["models", "check", str(tmp_path), str(tmp_path / "other")]).output
    assert said == "2 files, 2 valid\n"


def test_check_reports_the_same_errors_as_serve(tmp_path, weights, monkeypatch):
    monkeypatch.setattr(refresh, "build_hook", lambda _: None)
    models = tmp_path / "models"
    models.mkdir()
    for name, changes in REFUSED.items():
        written(models / f"{name}.yaml", weights, **{"sie_id": f"my/{name}", **changes})
    (models / "empty.yaml").touch()
    (models / "twice.yaml").write_text("sie_id: my/twice\ntasks: {}\ntasks: {}\n")
    settings = read_settings(data_dir=tmp_path / "data", models_dir=models, device="cpu")
    refused = refresh.start(settings, []).outcome.problems
    assert len(refused) == len(REFUSED) + 1  # of the twins, the first is served
    assert {f"error: {line}" for problem in refused.values() for line in problem.splitlines()} <= set(check(models, 1))


# --- directories of models


def sharded(directory: Path) -> Path:
    model = AutoModel.from_pretrained(directory)
    model.save_pretrained(directory, max_shard_size="200KB")
    (directory / "model.safetensors").unlink()
    return directory


def test_a_directory_is_checked_as_it_would_be_served(weights):
    line, last = check(weights)
    assert line.startswith(f"recognised: {weights}: sentence_transformer: ")
    assert last == "1 directories, 1 valid"


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (cut_off, r"model\.safetensors: has \d+ bytes, but its header says \d+"),
        (lambda path: (path / "model.safetensors").write_bytes(b"\xff" * 100), r"model\.safetensors: is not"),
        (lambda path: (path / "model.safetensors").unlink(), r"has no model\.safetensors"),
        (lambda path: (path / "more.safetensors").write_bytes(b"\x08"), r"more\.safetensors: is not a safetensors"),
        (lambda path: (path / "1_Pooling" / "config.json").write_text("{"), r"1_Pooling/config\.json"),
        (lambda path: (path / "config.json").unlink(), r"config\.json is missing"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), r"tokenizer\.json"),
    ],
)
def test_a_fault_of_a_directory_is_an_error(weights, damage, complaint):
    damage(weights)
    *said, last = check(weights, 1)
    assert last == "1 directories, 1 invalid"
    assert any(line.startswith("error: ") and re.search(complaint, line) for line in said), said


@pytest.mark.parametrize("family", ["sentence_transformer", "llm_reranker"])
def test_each_shard_must_be_there_and_whole(tmp_path, minilm_directory, family):
    """Also of a family that does not name the files of its weights."""
    if family == "llm_reranker":
        directory = sharded(save_causal(tmp_path, minilm_directory))
        path = tmp_path / "model.yaml"
        loadtime = {"yes_token": "yes", "no_token": "no", "input_format": "qwen3"}
        path.write_text(model_file("my/model", directory, family, {"score": {}}, loadtime=loadtime))
    else:
        path = directory = sharded(save_bert(tmp_path, tokenizer=minilm_directory))
    check(path)
    first, second, *_ = sorted(directory.glob("model-*.safetensors"))
    first.write_bytes(first.read_bytes()[:-1])
    assert f"{first.name}: has" in check(path, 1)[0] or f"{first.name}: has" in check(path, 1)[1]
    first.unlink()
    assert f"{first.name} is missing" in check(path, 1)[0]
    assert second.exists()


def test_a_directory_without_a_model_is_an_error(tmp_path):
    assert "is empty" in check(tmp_path, 1)[0]


def test_other_yaml_files_of_a_directory_are_no_model_files(weights):
    (weights / "eval.yaml").write_text("org/a: {ndcg_at_10: 1}")
    assert check(weights)[-1] == "1 directories, 1 valid"


def test_yaml_files_alone_are_model_files(tmp_path):
    (tmp_path / "new.yaml").write_text("hf_id: org/name")
    assert check(tmp_path, 1)[-1] == "1 files, 1 invalid"
