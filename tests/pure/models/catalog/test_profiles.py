"""Inheritance between profiles, through several levels, and its result in the spec."""

from types import SimpleNamespace

import pytest
import yaml

from sie_triton.contract.spec import Runtime
from sie_triton.errors import CatalogError
from sie_triton.models.catalog import load_file
from sie_triton.models.families import family
from sie_triton.pipeline.render.build import selected
from sie_triton.settings import read_settings

MUVERA = {"num_repetitions": 4, "projection_dim": 8, "final_projection_dim": None}


def load(tmp_path, profiles, family="sentence_transformer", tasks=None):
    """`profiles`: name → parent, runtime, loadtime, and keys of its own."""
    made = {}
    for name, given in profiles.items():
        given = dict(given)
        options = {key: given.pop(key, {}) for key in ("loadtime", "runtime")}
        made[name] = {**given, "adapter_options": options}
    made["default"]["adapter_path"] = family
    tasks = tasks or {"encode": {"dense": {"dim": 8}}}
    document = {"sie_id": "my/m", "weights_path": "x", "tasks": tasks, "max_sequence_length": 64, "profiles": made}
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(document))
    return load_file(path)


def test_profiles_inherit_through_a_chain_of_extends(tmp_path):
    model = load(
        tmp_path,
        {
            "default": {
                "max_batch_tokens": 1000,
                "compute_precision": "float16",
                "loadtime": {"yes_token": "ja"},
                "runtime": {"pooling": "cls", "normalize": False},
            },
            "middle": {"extends": "default", "max_batch_tokens": 2000, "runtime": {"pooling": "max"}},
            "last": {"extends": "middle", "loadtime": {"yes_token": "oui"}},
            "own": {"extends": "last", "compute_precision": "float32", "runtime": {"pooling": "mean"}},
        },
    )
    found = {
        name: (
            profile.max_batch_tokens,
            profile.compute_precision,
            profile.adapter_path,
            profile.adapter_options.loadtime.own["yes_token"],
            profile.adapter_options.runtime.own["pooling"],
        )
        for name in model.profiles
        for profile in [model.profile(name)]
    }
    assert found == {
        "default": (1000, "float16", "sentence_transformer", "ja", "cls"),
        "middle": (2000, "float16", "sentence_transformer", "ja", "max"),
        "last": (2000, "float16", "sentence_transformer", "oui", "max"),
        "own": (2000, "float32", "sentence_transformer", "oui", "mean"),
    }
    # A runtime of its own replaces the whole of the parent's.
    assert model.profile("middle").adapter_options.runtime.normalize is None


@pytest.mark.parametrize("name", ["last", "last_token", "lasttoken"])
def test_the_last_token_has_three_names(tmp_path, name):
    assert pooling(load(tmp_path, {"default": {"runtime": {"pooling": name}}})) == ("lasttoken",)


def test_checkpoint_pooling_takes_precedence_over_the_model_file(tmp_path, caplog):
    saved = ("max", "mean")
    assert pooling(load(tmp_path, {"default": {}}), saved) == saved
    assert not caplog.records
    assert pooling(load(tmp_path, {"default": {"runtime": {"pooling": "cls"}}}), saved) == saved
    assert [record.message for record in caplog.records] == [
        "pooling: the model file says cls, but the checkpoint says max and mean and takes precedence"
    ]


def pooling(config, saved=None):
    """`saved`: pooling according to the model's own files."""
    spec = config.resolve(Runtime())
    files = SimpleNamespace(pooling=saved or ("mean",), is_declared=saved is not None)
    return family(spec.family).options.of(spec).modes(files)


def test_instructions_and_templates_reach_the_stages(tmp_path):
    runtime = {
        "instruction": "all",
        "default_instruction": "queries",
        "query_template": "{instruction} {text}",
        "doc_template": "d {text}",
    }
    spec = load(tmp_path, {"default": {"runtime": runtime}, "plain": {"runtime": {"normalize": False}}}).resolve(
        Runtime()
    )
    profile = spec.profile("default")
    assert (profile.instruction, profile.query_instruction) == ("all", "queries")
    assert (profile.query_template, profile.document_template) == ("{instruction} {text}", "d {text}")
    assert "normalize" not in profile.parameters


def test_muvera_config_applies_only_to_an_empty_muvera_option(tmp_path):
    """`muvera_config` applies only to a profile with an empty `muvera: {}`."""
    tasks = {"encode": {"multivector": {"dim": 16, "scales": True}}}
    for runtime, repetitions in (({"muvera": {}}, 4), ({"muvera": {"num_repetitions": 9}}, 9)):
        default = {"loadtime": {"muvera_config": MUVERA}, "runtime": runtime}
        spec = load(tmp_path, {"default": default}, "multivector", tasks).resolve(Runtime())
        assert spec.muvera.num_repetitions == repetitions
        assert list(spec.dims) == ["multivector", "muvera"]
        # Its encodings are scaled as the vectors that they are made of.
        assert spec.scaled == ("multivector", "muvera")


def test_scales_only_where_they_are_declared(tmp_path):
    tasks = {"encode": {"dense": {"dim": 8, "scales": True}, "multivector": {"dim": 16}, "sparse": {"dim": 30}}}
    spec = load(tmp_path, {"default": {"runtime": {"muvera": MUVERA}}}, "bge_m3", tasks).resolve(Runtime())
    assert spec.scaled == ("dense",)


@pytest.mark.parametrize("names", [["my/m"], []])
def test_a_profile_that_cannot_be_served_stops_no_other(tmp_path, names):
    """Its model is asked for by name; the profile, which would be a separate model, is not."""
    load(tmp_path, {"default": {}, "other": {"extends": "default", "engine": "jax"}})
    found = selected(read_settings(models_dir=tmp_path), names)
    assert [model.sie_id for model in found.models] == ["my/m"]
    ((source, problem),) = found.problems.items()
    assert source.endswith("m.yaml: profiles.other")
    assert "'jax' cannot be served" in problem


def test_a_profile_of_another_engine_does_not_inherit_the_onnx_file(tmp_path):
    profiles = {"default": {"onnx_file": "model.onnx"}, "same": {"extends": "default"}}
    model = load(tmp_path, {**profiles, "other": {"extends": "default", "engine": "torch"}})
    assert {name: model.profile(name).onnx_file for name in model.profiles} == {
        "default": "model.onnx",
        "same": "model.onnx",
        "other": None,
    }


def test_profiles_that_share_weights_share_their_muvera_options(tmp_path):
    tasks = {"encode": {"multivector": {"dim": 16}}}
    given = {
        "default": {"runtime": {"muvera": {"seed": 1}}},
        "other": {"extends": "default", "runtime": {"muvera": {"seed": 2}}},
    }
    with pytest.raises(CatalogError, match="profiles: default and other must have the same muvera options"):
        load(tmp_path, given, "multivector", tasks).resolve(Runtime())
