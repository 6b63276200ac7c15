"""Keys of a model file for its family: options, engine, dims, and the parameters that its profiles set."""

import pytest
import yaml

from sie_triton.contract.spec import Runtime
from sie_triton.errors import CatalogError
from sie_triton.models.catalog import load_file
from sie_triton.models.catalog.recognise import check_dims
from tests.support import family_double
from tests.support.family_double import NAME


def resolve(tmp_path, family=NAME, *, warnings=False, tasks=None, **profiles):
    """`profiles`: name → what stands in it; `runtime` and `loadtime` are its options."""
    made = {}
    for name, given in {"default": {}, **profiles}.items():
        options = {key: given[key] for key in ("runtime", "loadtime") if key in given}
        rest = {key: value for key, value in given.items() if key not in options}
        parent = {} if name == "default" else {"extends": "default"}
        made[name] = {**parent, **rest, "adapter_options": options}
    made["default"]["adapter_path"] = family
    tasks = tasks or {"encode": {"dense": {"dim": 2}}}
    document = {"sie_id": "my/m", "weights_path": "x", "tasks": tasks, "max_sequence_length": 64, "profiles": made}
    path = tmp_path / "m.yaml"
    path.write_text(yaml.safe_dump(document))
    return load_file(path).warnings() if warnings else load_file(path).resolve(Runtime())


def test_a_model_file_sets_a_familys_options_and_a_profile_its_parameters(tmp_path):
    found = resolve(
        tmp_path,
        default={"loadtime": {"depth": 5}, "runtime": {"threshold": 0.5}},
        other={"runtime": {"labels": "near,far", "normalize": False}},
        tasks={"encode": {"dense": {"dim": 2}, "tags": {"dim": 4}}},
    )
    assert (found.family, found.options, found.dims) == (NAME, {"depth": 5}, {"dense": 2, "tags": 4})
    assert found.engine == f"{family_double.__name__}:OwnEngine"
    assert {profile.name: profile.parameters for profile in found.profiles} == {
        "default": {"output_types": "dense,tags", "threshold": 0.5},
        "other": {"output_types": "dense,tags", "labels": "near,far", "normalize": False},
    }


def test_runtime_options_override_loadtime_options(tmp_path):
    assert resolve(tmp_path, default={"loadtime": {"depth": 5}, "runtime": {"depth": 7}}).options == {"depth": 7}
    assert resolve(tmp_path).options == {"depth": 3}


def test_options_read_at_load_time_are_no_parameters_of_a_profile(tmp_path):
    """`normalize` is an option of families that have no dense vectors to normalise."""
    tasks = {"encode": {"multivector": {"dim": 2}}}
    found = resolve(tmp_path, family="multivector", default={"loadtime": {"normalize": False}}, tasks=tasks)
    assert found.options["normalize"] is False
    assert found.profiles[0].parameters == {"output_types": "multivector"}


@pytest.mark.parametrize("profile", ["default", "other"])
@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"runtime": {"threshold": 2}}, "adapter_options.runtime: parameter threshold: 2 is not allowed"),
        ({"runtime": {"labels": "middle"}}, "adapter_options.runtime: parameter labels: 'middle' is not allowed"),
        ({"runtime": {"nope": 1}}, "adapter_options.runtime.nope: unknown key; allowed keys are .*depth, labels,"),
        ({"loadtime": {"nope": 1}}, "adapter_options.loadtime.nope: is not an option of the family"),
    ],
)
def test_invalid_options_are_refused_in_every_profile(tmp_path, profile, given, complaint):
    with pytest.raises(CatalogError, match=f"m.yaml: profiles.{profile}.?:? ?{complaint}"):
        resolve(tmp_path, **{profile: given})


def test_a_wrong_option_is_named_where_it_stands(tmp_path):
    for place in ("loadtime", "runtime"):
        with pytest.raises(CatalogError, match=rf"profiles.default.adapter_options.{place}.depth: .*\(given 0\)"):
            resolve(tmp_path, default={place: {"depth": 0}})


def test_an_engine_that_the_family_cannot_use_is_refused(tmp_path):
    assert resolve(tmp_path, default={"engine": "torch"}).engine == "torch"
    with pytest.raises(CatalogError, match=r"profiles.default.engine: 'jax' cannot be served; .* can use .*, torch$"):
        resolve(tmp_path, default={"engine": "jax"})


@pytest.mark.parametrize(
    ("other", "key"),
    [
        ({"engine": "torch"}, "engine"),
        ({"compute_precision": "float32"}, "compute_precision"),
        ({"runtime": {"depth": 9}}, "adapter_options.runtime.depth"),
        ({"runtime": {"max_seq_length": 9}}, "adapter_options.runtime.max_seq_length"),
    ],
)
def test_a_profile_that_needs_other_weights_is_served_separately(tmp_path, other, key):
    default = {"engine": f"{family_double.__name__}:OwnEngine"}
    (line,) = resolve(tmp_path, default=default, other=other, warnings=True)
    assert line.endswith(
        f"profiles.other: is served as a separate model, my/m.other: {key} differs from profiles.default"
    )
    assert [each.name for each in resolve(tmp_path, default=default, other=other).profiles] == ["default"]


def test_a_profile_has_the_engine_of_the_one_it_extends(tmp_path):
    assert resolve(tmp_path, default={"engine": "torch"}, other={}, warnings=True) == []


@pytest.mark.parametrize("key", ["query_template", "doc_template", "default_instruction"])
def test_templates_have_no_effect_where_pairs_are_read(tmp_path, key):
    given = {"default": {"runtime": {key: "{text}"}}}
    (line,) = resolve(tmp_path, "cross_encoder", tasks={"score": {}}, warnings=True, **given)
    assert line.endswith(f"profiles.default.adapter_options.runtime.{key}: has no effect in the family cross_encoder")
    assert resolve(tmp_path, warnings=True, **given) == []


def test_dims_are_compared_with_a_directory_at_hand_in_both_directions(tmp_path, tiny_directory):
    for dim in (63, 65):
        path = tmp_path / "m.yaml"
        document = {
            "sie_id": "my/m",
            "weights_path": str(tiny_directory),
            "tasks": {"encode": {"dense": {"dim": dim}}},
            "max_sequence_length": 64,
            "profiles": {"default": {"adapter_path": "sentence_transformer"}},
        }
        path.write_text(yaml.safe_dump(document))
        with pytest.raises(CatalogError, match=rf"tasks.encode.dense.dim: must be 64, as in .* \(given {dim}\)"):
            check_dims(load_file(path))
