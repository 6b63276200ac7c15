"""LoRA adapters in model files, specs and the output of commands."""

import pytest
import yaml
from click.testing import CliRunner

from sie_triton.cli import cli
from sie_triton.contract.spec import ModelSpec, Runtime
from sie_triton.errors import CatalogError
from sie_triton.models.catalog import load_file
from tests.support.lora_families import set_takes_loras

FAMILY = "sentence_transformer"


@pytest.fixture(autouse=True)
def taken(monkeypatch):
    set_takes_loras(monkeypatch, FAMILY, True)
    set_takes_loras(monkeypatch, "splade", False)


def document(profiles=None, **more):
    """Return a model file; `profiles` has the runtime options of each, and others extend the default."""
    made = {"default": {"adapter_path": FAMILY}}
    for name, given in (profiles or {}).items():
        made.setdefault(name, {"extends": "default"})["adapter_options"] = {"runtime": given}
    tasks = {"encode": {"dense": {"dim": 8}}}
    return {"sie_id": "my/m", "weights_path": "/x", "tasks": tasks, "max_sequence_length": 64, "profiles": made, **more}


def load(directory, *given, **more):
    return written(directory, document(*given, **more))


def written(directory, content):
    path = directory / "m.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return load_file(path)


def spec_of(directory, *given, **more) -> ModelSpec:
    return load(directory, *given, **more).resolve(Runtime())


NAMED = {
    "banking": "org/bge-lora",
    "org/pinned": "org/bge-lora@v1.2",
    "there": "/adapters/there",
    "shipped": "package://my_package/adapter",
}


def test_a_file_says_where_each_adapter_is(tmp_path):
    spec = spec_of(tmp_path, loras=NAMED)
    assert spec.loras == {**NAMED, "banking": "hub://org/bge-lora", "org/pinned": "hub://org/bge-lora@v1.2"}
    assert ModelSpec.from_json(spec.to_json()) == spec
    assert spec.profile("default").parameters.get("lora") is None


@pytest.mark.parametrize("name", ["", "a b", "ü", "a\n", "../x", "-x", "a:b", "x" * 201])
def test_an_invalid_adapter_name_is_refused(tmp_path, name):
    with pytest.raises(CatalogError, match=r"(?s)loras.*must be 1 to 200 of the characters a-z, A-Z, 0-9, "):
        load(tmp_path, loras={name: "org/x"})
    assert load(tmp_path, loras={"x" * 200: "org/x", "9.a_b-c/d": "org/x"})


@pytest.mark.parametrize(
    "source", ["", "x", "org/x/y", "http://org/x", "package://", "org/x@", "hub://x", "org/x y", "a/b@c/d"]
)
def test_an_invalid_adapter_source_is_refused(tmp_path, source):
    with pytest.raises(CatalogError, match=r"loras\.a: .*must be an id on the model hub \(org/name or"):
        load(tmp_path, loras={"a": source})


def test_a_profile_names_an_adapter_and_shares_the_weights(tmp_path):
    profiles = {
        "bank": {"lora_id": "banking"},
        "hub": {"lora_id": "org/other"},
        "dir": {"lora_id": "./d"},
        "none": {"lora_id": ""},
    }
    config = load(tmp_path, profiles, loras={"banking": "org/bge-lora"})
    spec = config.resolve(Runtime())
    assert {profile.name: profile.parameters.get("lora") for profile in spec.profiles} == {
        "default": None,
        "bank": "banking",
        "hub": "org/other",
        "dir": "./d",
        "none": None,
    }
    assert spec.loras == {"banking": "hub://org/bge-lora", "org/other": "hub://org/other", "./d": f"{tmp_path}/d"}
    assert (spec.apart, config.variants(), config.warnings()) == ((), [], [])


def test_only_empty_profiles_inherit_the_default_profiles_adapter(tmp_path):
    profiles = {"default": {"lora_id": "org/x"}, "same": {}, "loud": {"normalize": False}}
    spec = spec_of(tmp_path, profiles)
    found = {profile.name: profile.parameters.get("lora") for profile in spec.profiles}
    assert found == {"default": "org/x", "same": "org/x", "loud": None}


@pytest.mark.parametrize(
    ("lora_id", "loras", "said"),
    [
        ("bankng", {"banking": "org/x", "b": "org/y"}, r"'bankng' is not among loras \(banking, b\), and so must be"),
        ("bankng", {}, "'bankng' must be an id on the model hub"),
        ("/" + "x" * 200, {}, "has 201 characters, more than 200; give it a name under loras"),
    ],
)
def test_a_profile_that_names_no_adapter_is_refused(tmp_path, lora_id, loras, said):
    with pytest.raises(CatalogError, match=rf"m\.yaml: profiles\.fin\.adapter_options\.runtime\.lora_id: {said}"):
        spec_of(tmp_path, {"fin": {"lora_id": lora_id}}, loras=loras)


def test_a_profile_with_other_weights_is_a_model_of_its_own_with_its_adapter(tmp_path):
    config = load(tmp_path, {"long": {"lora_id": "org/x", "max_seq_length": 32}}, loras={"banking": "org/y"})
    assert config.resolve(Runtime()).apart == ("long",)
    (variant,) = config.variants()
    spec = variant.resolve(Runtime())
    assert (spec.model, spec.profile("default").parameters["lora"]) == ("my/m.long", "org/x")
    assert spec.loras == {"banking": "hub://org/y", "org/x": "hub://org/x"}


def test_a_family_without_adapters_refuses_them(tmp_path, monkeypatch):
    set_takes_loras(monkeypatch, FAMILY, False)
    where = "profiles.default.adapter_options.runtime.lora_id"
    with pytest.raises(CatalogError, match=rf"m\.yaml: {where}: 'org/x' cannot be served; the family {FAMILY} takes"):
        spec_of(tmp_path, {"default": {"lora_id": "org/x"}})
    with pytest.raises(CatalogError, match=rf"m\.yaml: loras: cannot be served; the family {FAMILY} takes no LoRA"):
        spec_of(tmp_path, loras={"banking": "org/x"})
    config = load(tmp_path, {"fin": {"lora_id": "org/x"}})
    assert config.warnings() == [
        f"warning: {tmp_path}/m.yaml: profiles.fin: is not served: the family {FAMILY} takes no LoRA adapters"
    ]
    spec = config.resolve(Runtime())
    assert ([profile.name for profile in spec.profiles], spec.loras, spec.apart) == (["default"], {}, ())


def test_a_variant_in_a_family_without_adapters_inherits_none(tmp_path):
    """A profile of another family that takes no adapters inherits none."""
    content = document(loras={"banking": "org/y"})
    content["profiles"]["other"] = {"adapter_path": "splade"}
    (variant,) = written(tmp_path, content).variants()
    assert variant.loras == {}


def test_models_show_prints_the_adapters(tmp_path):
    load(tmp_path, {"bank": {"lora_id": "banking"}}, loras={"banking": "org/bge-lora", "there": "/adapters/there"})
    shown = CliRunner().invoke(cli, ["models", "show", "my/m", "--models-dir", str(tmp_path)], catch_exceptions=False)
    for text in ("adapters", "banking: hub://org/bge-lora", "there: /adapters/there", "lora: banking"):
        assert text in shown.output, shown.output
