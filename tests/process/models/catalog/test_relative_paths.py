"""Relative paths of a model file start at the file, wherever the server or the command was started."""

from pathlib import Path

import pytest
import yaml

from sie_triton.cli.model_files import text_of
from sie_triton.cluster.config.api import check
from sie_triton.contract.spec import Runtime
from sie_triton.errors import CatalogError
from sie_triton.models.catalog import load_file, select
from sie_triton.models.catalog.load import read_model, read_sent
from sie_triton.pipeline.render import refresh
from sie_triton.pipeline.render.build import spec_of
from sie_triton.settings import read_settings
from tests.support.models import save_bert

NAMED = {"near": "../loras/near", "here": "./here", "home": "~/x", "hub": "org/x", "package": "package://json/x"}
BANK = {"adapter_options": {"runtime": {"lora_id": "./bank"}}}


def content(**more: object) -> str:
    default = {"adapter_path": "sentence_transformer"}
    model = {"sie_id": "my/dense", "weights_path": "./m/dense", "tasks": {"encode": {"dense": {"dim": 64}}}}
    return yaml.safe_dump({**model, "profiles": {"default": default, **more.pop("profiles", {})}, **more})


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "models" / "dense.yaml"
    path.parent.mkdir()
    path.write_text(content())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return path


@pytest.mark.parametrize("name", ["../models/dense.yaml", "{}/models/dense.yaml"])
def test_weights_are_relative_to_the_file(tmp_path, file, name):
    (model,) = select([name.format(tmp_path)], None, allow_hub=False).models
    assert Path(model.resolve(Runtime()).weights).resolve() == file.parent / "m" / "dense"


def test_variants_are_relative_to_the_file(file):
    file.write_text(content(profiles={"exact": {"extends": "default", "compute_precision": "float32"}}))
    (variant,) = load_file(file).variants()
    assert variant.resolve(Runtime()).weights == str(file.parent / "m" / "dense")


def test_adapters_are_relative_to_the_file(file, monkeypatch):
    monkeypatch.setenv("HOME", "/home/user")
    file.write_text(content(loras=NAMED, profiles={"bank": {"extends": "default", **BANK}}))
    assert load_file(file).resolve(Runtime()).loras == {
        "near": f"{file.parent}/../loras/near",
        "here": f"{file.parent}/here",
        "home": "/home/user/x",
        "hub": "hub://org/x",
        "package": "package://json/x",
        "./bank": f"{file.parent}/bank",
    }


def test_all_settings_render_the_same_paths(file):
    settings = read_settings(device="cpu")
    specs = [spec_of(load_file(file), runtime) for runtime in (settings.portable_runtime, settings.runtime)]
    assert {spec.weights for spec in specs} == {str(file.parent / "m" / "dense")}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, "weights_path"),
        ({"weights_path": "/m", "loras": {"bank": "./bank"}}, "loras.bank"),
        ({"weights_path": "/m", "profiles": {"bank": {"extends": "default", **BANK}}}, "profiles.bank.adapter_options"),
    ],
)
def test_a_relative_path_of_a_file_that_was_sent_is_refused(tmp_path, changes, field):
    text = content(**changes).encode()
    for refusing in (read_sent, lambda text: check(text, read_settings())):
        with pytest.raises(CatalogError, match=rf"{field}.*: \./\S+ must begin with /"):
            refusing(text)
    settings = read_settings(data_dir=tmp_path / "data", device="cpu")
    refresh.start(settings, [])
    outcome = refresh.refresh(tmp_path / "data", add=text)
    assert outcome.reason.startswith(field)


def test_a_file_is_sent_with_absolute_paths(file, monkeypatch):
    monkeypatch.setenv("HOME", "/home/user")
    file.write_text(content(loras=NAMED))
    sent = read_sent(text_of("../models/dense.yaml", read_settings()).encode())
    ours = load_file(file)
    assert (Path(sent.weights).resolve(), sent.loras.keys()) == (Path(ours.weights), ours.loras.keys())
    assert {name: Path(where).resolve() for name, where in sent.resolve(Runtime()).loras.items()} == {
        name: Path(where).resolve() for name, where in ours.resolve(Runtime()).loras.items()
    }


def test_a_file_of_absolute_paths_is_sent_as_it_is(file):
    text = f"# a comment\n{content(weights_path='/m/dense')}"
    file.write_text(text)
    assert text_of(str(file), read_settings()) == text
    assert read_model(text.encode(), file).weights == "/m/dense"


@pytest.mark.parametrize("name", ["./m/dense", "m/dense"])
def test_an_error_names_the_directory_that_was_looked_for(file, tmp_path, name):
    with pytest.raises(CatalogError, match=f"{name}: .*{tmp_path}/elsewhere/m/dense, "):
        select([name], None, allow_hub=False)


def test_dims_are_compared_with_the_directory_beside_the_file(file, minilm_directory):
    save_bert(file.parent / "m", tokenizer=minilm_directory)
    file.write_text(content(weights_path="./m/model", tasks={"encode": {"dense": {"dim": 65}}}))
    with pytest.raises(CatalogError, match=r"dense\.dim: must be 64, as in"):
        spec_of(load_file(file), read_settings(device="cpu").portable_runtime)
