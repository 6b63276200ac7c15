"""Lookup of families and engines, and the checks before a family serves."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import ENCODE_OUTPUTS, TASKS
from sie_triton.contract.spec import Runtime
from sie_triton.engines import open_engine
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.errors import CatalogError, LoadError, UnbuiltFamily
from sie_triton.models import families
from sie_triton.models.catalog import recognise
from sie_triton.models.catalog.config import ModelConfig
from sie_triton.models.catalog.recognise import family_in
from sie_triton.models.families import FAMILIES, Family, Recognised, family, family_of, load_adapter, model_of
from sie_triton.models.families.shared.token_batch import limits_of
from sie_triton.models.families.splade import Splade
from sie_triton.models.weights import locate
from tests.support import family_double
from tests.support.family_double import NAME, Own, OwnAdapter, OwnEngine
from tests.support.stages import spec

OWN = spec(family=NAME, dims={"dense": 2, "tags": 4})


# --- families


def test_a_family_is_found_by_name_or_by_import_path():
    for name in FAMILIES:
        assert isinstance(family(name), Family)
    assert type(family(NAME)) is Own
    assert family(NAME) is family(NAME)


@pytest.mark.parametrize("name", ["nothing", "no_such_package:Family", f"{family_double.__name__}:OwnEngine", ""])
def test_an_unknown_family_is_reported(name):
    with pytest.raises(LoadError, match=f"^family {name}: ") as caught:
        family(name)
    assert caught.value.reason == "dependency"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_package:Family", "dependency"),
        (f"{family_double.__name__}:Nothing", "dependency"),
        (f"{family_double.__name__}:NoEngine", "unsupported"),
        (f"{family_double.__name__}:NAME", "unsupported"),
        ("fails_as_it_is_imported:Family", "dependency"),
    ],
)
def test_a_declaration_of_what_is_no_family_is_reported(name, reason, monkeypatch, tmp_path):
    (tmp_path / "fails_as_it_is_imported.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(families, "declared", lambda: [name])
    with pytest.raises(LoadError, match=f"^family {name}: ") as caught:
        family(name)
    assert caught.value.reason == reason
    with pytest.raises(CatalogError, match=f"^here: adapter_path: '{name}': family {name}: "):
        family_of(name, "here")


@pytest.mark.parametrize("name", ["sprung:Family", "sprung.part:Family", "../sprung:Family", "sprung", "sprung.part"])
def test_nothing_is_imported_by_a_name_in_a_model_file(name, monkeypatch, tmp_path):
    (tmp_path / "sprung.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    tasks = {"encode": {"dense": {"dim": 8}}}
    for path, engine in ((name, "torch"), ("sentence_transformer", name)):
        profiles = {"default": {"adapter_path": path, "engine": engine}}
        with pytest.raises(CatalogError, match=f"here.yaml: .*'{name}'"):
            ModelConfig(sie_id="a/b", hf_id="a/b", tasks=tasks, profiles=profiles).record_source(
                Path("here.yaml")
            ).resolve(Runtime())
    with pytest.raises(LoadError):
        locate(f"package://{name}/x", allow_hub=False)


def test_an_adapter_path_names_a_family_of_ours_or_of_another_package():
    assert family_of("sie_server.adapters.bge_m3.adapter:BGEM3Adapter", "here") == "bge_m3"
    assert family_of(NAME, "here") == NAME
    with pytest.raises(CatalogError, match=r"^here: adapter_path: 'no_such_package:X' is no family"):
        family_of("no_such_package:X", "here")
    for path in ("own_family", None):
        with pytest.raises(CatalogError, match=r"^here: .* is not a family this version serves; families are bge_m3, "):
            family_of(path, "here")
    with pytest.raises(UnbuiltFamily, match=r"Other' is not served by this version; its families are bge_m3, "):
        family_of("sie_server.adapters.other:Other", "here")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cross_encodr", "; did you mean cross_encoder[?]"),
        ("dense", "; dense is an output of bge_m3, clip, .*, sentence_transformer"),
        ("zebra", ""),
    ],
)
def test_an_unknown_family_gets_the_known_ones_and_the_nearest(name, meant):
    with pytest.raises(LoadError, match=f"^family {name}: .* families are bge_m3, .* entry point of"):
        family(name)


class Jealous(Own):
    """A family that recognises a directory with a file called `own`."""

    def recognise(self, directory):
        return Recognised("it is ours", 7, {"dense": 2}) if (directory / "own").exists() else None


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(family_double, "Jealous", Jealous, raising=False)
    entry = SimpleNamespace(value=f"{family_double.__name__}:Jealous")
    monkeypatch.setattr(families, "entry_points", lambda group: [entry] if group == families.FAMILIES_GROUP else [])
    return entry.value


def test_installed_families_are_tried_before_ours(installed, tmp_path, minilm_directory):
    assert [name for name, _ in families.families()] == [installed, *FAMILIES]
    assert list(FAMILIES)[-1] == "sentence_transformer"
    # A directory that ours would take too.
    for path in minilm_directory.iterdir():
        (tmp_path / path.name).symlink_to(path)
    assert family_in(tmp_path)[0] == "sentence_transformer"
    (tmp_path / "own").touch()
    name, found = family_in(tmp_path)
    assert (name, found.reason) == (installed, "it is ours")
    config = recognise(tmp_path, "mine", {"weights_path": str(tmp_path)})
    assert (config.family, config.dims, config.max_sequence_length) == (installed, {"dense": 2}, 7)


class Pictures(Own):
    inputs = ("image",)

    def recognise(self, directory):
        return Recognised("it is ours", 7, {"dense": 2})


def test_a_recognised_model_reads_what_its_family_does(installed, tmp_path, monkeypatch):
    monkeypatch.setattr(family_double, "Pictures", Pictures, raising=False)
    entry = SimpleNamespace(value=f"{family_double.__name__}:Pictures")
    monkeypatch.setattr(families, "entry_points", lambda group: [entry])
    inputs = recognise(tmp_path, "mine", {"weights_path": str(tmp_path)}).inputs
    assert [name for name, read in inputs.model_dump().items() if read] == ["image"]


SCORING = (
    *("bge_m3", "colpali", "colsmol", "colqwen2", "colqwen3", "nemo_colembed", "multivector"),
    *("qwen3_vl_reranker", "causal_cross_encoder", "llm_reranker", "stablebridge_pruner", "cross_encoder"),
)


def test_can_score_agrees_with_the_tasks():
    for name in FAMILIES:
        kind = family(name)
        scores = name in SCORING
        assert kind.can_score == scores == ("score" in kind.tasks)
        assert {task.split(".")[0] for task in kind.tasks} <= set(TASKS)
    assert family("bge_m3").tasks == ("encode.dense", "encode.sparse", "encode.multivector", "score")


def test_a_familys_outputs_extend_and_override_the_contracts(monkeypatch):
    assert list(model_of(OWN).outputs) == ["dense", "tags"]
    dense = replace(ENCODE_OUTPUTS["dense"], quantized=None, scales=None)
    monkeypatch.setattr(Own, "outputs", (dense,))
    assert model_of(spec(family=NAME)).outputs == {"dense": dense}


def test_samples_have_the_shape_of_what_is_declared():
    found = family(NAME).sample([2, 3])
    assert {name: values.shape for name, (values, _) in found.items()} == {
        "letters": (5,),
        "pairs": (5, 2),
        "weight": (2, 3),
    }
    assert {name: values.dtype for name, (values, _) in found.items()} == {
        "letters": np.int32,
        "pairs": np.float32,
        "weight": np.float32,
    }
    for name, (_, lengths) in found.items():
        assert (lengths is None) == (name == "weight")
        assert lengths is None or lengths.tolist() == [2, 3]


# --- what is loaded


def load(of=OWN):
    return load_adapter(of, Path("nowhere"), OwnEngine(of, "cpu", Measurements()))


def test_weights_that_give_what_the_model_file_says_are_taken():
    assert type(load()) is OwnAdapter


@pytest.mark.parametrize(
    ("dims", "complaint"),
    [
        ({"dense": 3, "tags": 4}, "tasks.encode.dense.dim: the model file says 3, but the weights give 2"),
        ({"dense": 1, "tags": 4}, "tasks.encode.dense.dim: the model file says 1, but the weights give 2"),
        ({"dense": 2, "tags": 5}, "tasks.encode.tags.dim: the model file says 5, but the weights give 4"),
    ],
)
def test_sizes_of_outputs_are_those_of_the_model_file(dims, complaint):
    with pytest.raises(LoadError, match=complaint) as caught:
        load(replace(OWN, dims=dims))
    assert caught.value.reason == "unsupported"


def test_sizes_declared_by_the_adapter_must_match_the_model_file(monkeypatch):
    monkeypatch.setattr(OwnAdapter, "__init__", lambda self, encoder: setattr(self, "dims", {"tags": 9}))
    with pytest.raises(LoadError, match=r"tags\.dim: the model file says 4, but the weights give 9"):
        load()


def test_a_model_that_only_scores_has_no_sizes_to_check(monkeypatch):
    monkeypatch.setattr(OwnAdapter, "forward", lambda *_: pytest.fail("nobody asked for outputs"))
    load(replace(OWN, tasks=("score",), dims={}))


# --- engines


def test_an_engine_is_found_by_name_or_by_import_path():
    measurements = Measurements()
    assert type(open_engine(spec(), "cpu", measurements)) is TorchEngine
    own = spec(engine=f"{family_double.__name__}:OwnEngine")
    engine = open_engine(own, "cuda:1", measurements)
    assert type(engine) is OwnEngine
    assert (engine.spec, engine.device, engine.measurements) == (own, "cuda:1", measurements)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("jax", "dependency"),
        (f"{family_double.__name__}:Nothing", "dependency"),
        (f"{family_double.__name__}:NoEngine", "unsupported"),
    ],
)
def test_an_unknown_engine_is_reported(name, reason):
    with pytest.raises(LoadError, match=f"^engine {name}: ") as caught:
        open_engine(spec(engine=name), "cpu", Measurements())
    assert caught.value.reason == reason


def test_the_largest_token_is_the_last_of_the_vocabulary(tiny_directory):
    vocab_size = json.loads((tiny_directory / "config.json").read_text())["vocab_size"]
    assert limits_of(TextFiles.read(tiny_directory)) == {"input_ids": vocab_size - 1}


class Extended(Splade):
    """A family in a plain module that extends a built-in one."""


def test_a_family_that_extends_another_has_its_functions():
    for name, module, home in (("load_adapter", ".adapter", ".adapter"), ("load_processor", ".", "")):
        assert Extended()._function(name, module).__module__ == f"sie_triton.models.families.splade{home}"
    for name, module in (("load_adapter", ".gone"), ("gone", ".adapter")):
        with pytest.raises(LoadError, match=rf"family Extended: has no {name} in the module {module}"):
            Extended()._function(name, module)


def test_an_engine_that_the_family_cannot_use_is_named():
    with pytest.raises(LoadError, match="engine onnx: this family cannot use it, but torch"):
        Extended().load(spec(engine="onnx"), None, None)
