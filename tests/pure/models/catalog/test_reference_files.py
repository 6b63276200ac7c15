"""SIE's own model files: read unchanged; served, or refused by name; one never stops another."""

import re
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from sie_triton.contract import VERBS
from sie_triton.contract.spec import ANY_LENGTH, Runtime
from sie_triton.errors import CatalogError, InputError, UnbuiltFamily
from sie_triton.models.catalog import load_file
from sie_triton.models.catalog.load import read_model
from sie_triton.models.families import family, model_of
from sie_triton.pipeline.render.build import selected, write_repository
from sie_triton.settings import read_settings
from tests.support import reference_files
from tests.support.lora_families import set_takes_loras


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    reference_files.write(made)
    return made


def resolved(directory, name):
    return load_file(directory / f"org__{name}.yaml").resolve(Runtime())


def test_every_adapter_is_known():
    """The list has as many adapters as SIE's own files of release 0.3.1, and eight of 0.10.1."""
    paths = [
        profile["adapter_path"]
        for document in {**reference_files.SERVED, **reference_files.NOT_SERVED}.values()
        for profile in document["profiles"].values()
        if "adapter_path" in profile
    ]
    assert len(set(paths)) == 53


def test_reference_files_of_implemented_families_are_rendered(directory, tmp_path):
    settings = read_settings(models_dir=directory)
    found = selected(settings, [])
    variants = ["org/bge-m3.flag"]
    assert {model.sie_id for model in found.models} == {
        reference_files.sie_id(name) for name in reference_files.SERVED
    } | {*variants}
    said = "\n".join(found.problems.values())
    for name, document in reference_files.NOT_SERVED.items():
        assert re.search(rf"org__{name}\.yaml: hf_id: {document['hf_id']} is not served by this version: ", said)
    assert len(found.problems) == len(reference_files.NOT_SERVED)
    lines = write_repository(tmp_path, settings, [], hook=False)
    assert len([line for line in lines if line.startswith("not served: ")]) == len(found.problems)
    assert len(list(tmp_path.glob("*-inference"))) == len(found.models)


def test_a_model_of_a_family_that_reads_others_is_refused_with_the_reason(directory):
    with pytest.raises(UnbuiltFamily, match=r"version 1 .* is not public; version 2 is served: nvidia/nemotron-"):
        resolved(directory, "nemo-v1")
    pages = resolved(directory, "nemo")
    assert (pages.family, pages.score_modes, pages.max_sequence_length) == ("nemo_colembed", ("maxsim",), 8192)


def test_without_max_sequence_length_the_checkpoints_limit_applies(directory):
    assert resolved(directory, "modernbert").max_sequence_length == ANY_LENGTH
    assert resolved(directory, "colbert-rotary").max_sequence_length == 300


def test_options_of_reference_files_are_resolved(directory):
    assert resolved(directory, "gritlm").options == {"pooling": "mean", "forward_kwargs": {"is_causal": False}}
    grit = family("sentence_transformer").options.of(resolved(directory, "gritlm"))
    assert grit.is_causal is False
    qwen = resolved(directory, "qwen2")
    assert qwen.options["dense_projection_path"] == "2_Dense_1024"
    assert qwen.profiles[0].query_template == f"Instruct: {reference_files.INSTRUCTION}\nQuery: {{text}}"
    colbert = resolved(directory, "colbert")
    assert (colbert.muvera.projection_dim, colbert.muvera.final_projection_dim) == (8, None)
    muvera = colbert.profile("muvera")
    assert muvera.parameters["output_types"] == "muvera"
    reranker = resolved(directory, "reranker-qwen3")
    assert (reranker.options["input_format"], reranker.options["default_instruction"]) == (
        "qwen3",
        reference_files.INSTRUCTION,
    )
    assert reranker.profiles[0].query_instruction == ""


def test_a_request_parameter_may_stand_under_loadtime(directory):
    assert resolved(directory, "gliclass").profiles[0].parameters == {
        "classification_type": "single-label",
        "multi_label": True,
    }
    assert resolved(directory, "pruner").options["hidden_size"] == 768
    assert resolved(directory, "owlv2").profiles[0].parameters == {"score_threshold": 0.1}


def test_the_text_of_labels_is_no_input(directory):
    assert resolved(directory, "dino").inputs == resolved(directory, "owlv2").inputs == ("image",)


def test_profiles_that_need_weights_of_their_own(directory, monkeypatch):
    set_takes_loras(monkeypatch, "bge_m3", False)
    config = load_file(directory / "org__bge-m3.yaml")
    assert config.apart == {"flag": ("compute_precision", "adapter_options.runtime.pooling")}
    (flag,) = config.variants()
    assert (flag.sie_id, flag.base, flag.resolve(Runtime()).runtime.precision) == ("org/bge-m3.flag", "org/bge-m3", "")
    spec = config.resolve(Runtime())
    assert ([profile.name for profile in spec.profiles], spec.apart) == (["default", "sparse"], ("flag",))
    said = "\n".join(config.warnings())
    assert "profiles.banking: is not served: the family bge_m3 takes no LoRA adapters" in said
    assert "profiles.flag: is served as a separate model, org/bge-m3.flag: compute_precision, " in said


def test_a_request_for_a_separate_profile_names_the_model_that_serves_it(directory):
    parameters = VERBS["encode"].all_parameters(model_of(resolved(directory, "bge-m3")))
    assert parameters["profile"].check("sparse") == "sparse"
    with pytest.raises(InputError, match=r"profile: 'flag' is not .* sparse, banking; separate models are"):
        parameters["profile"].check("flag")


def test_options_for_other_servers_are_noted_and_not_refused(directory):
    config = load_file(directory / "org__rope.yaml")
    where = f"note: {directory}/org__rope.yaml: profiles.default.adapter_options.loadtime"
    assert [line.split(": is not needed")[0] for line in config.notes() if "profiles.default" in line] == [
        f"{where}.config_kwargs",
        f"{where}.trust_remote_code",
    ]


# Files of SIE's newer releases


def loaded(changes):
    """Return a file of SIE's with other values at these paths; None removes a key."""
    document = {**deepcopy(reference_files.SERVED["st"]), "sie_id": "org/new", "hf_id": "org/new"}
    for path, value in changes.items():
        *holders, key = path.split(".")
        place = document
        for holder in holders:
            place = place.setdefault(holder, {})
        if value is None:
            del place[key]
        else:
            place[key] = value
    return read_model(yaml.safe_dump(document).encode(), Path("new.yaml"))


CANDLE = "sie_server_rust.adapters.candle:CandleEmbeddingAdapter"
SGLANG = "sie_server.adapters.sglang_vision_extract.adapter:SGLangVisionExtractAdapter"


def test_the_only_profile_of_a_file_is_its_default():
    profile = {"adapter_path": CANDLE, "adapter_options": {"runtime": {"pooling": "cls", "doc_template": "d: {text}"}}}
    spec = loaded({"profiles": {"candle": profile}}).resolve(Runtime())
    assert (spec.family, spec.options["pooling"]) == ("sentence_transformer", "cls")
    assert [(each.name, each.document_template) for each in spec.profiles] == [
        (n, "d: {text}") for n in ("default", "candle")
    ]
    assert spec.apart == ()


def test_errors_name_the_only_profile_as_the_file_does():
    with pytest.raises(CatalogError, match=r"profiles\.fast\.max_batch_tokens") as caught:
        loaded({"profiles": {"fast": {"adapter_path": CANDLE, "max_batch_tokens": -1}}})
    assert "default" not in str(caught.value)


@pytest.mark.parametrize("name", ["default", "other"])
def test_a_profile_of_another_engine_is_computed_as_the_others_are(name):
    """SIE's SGLang and Candle compute what its own adapters compute."""
    own = {"adapter_path": "sie_server.adapters.glm_ocr:GlmOcrAdapter"}
    profiles = {"default": own, "other": own, "sglang": own}
    loading = {"served_model_name": "x", "extra_env": {"A": "1"}}
    profiles[name] = {
        "adapter_path": SGLANG,
        "adapter_options": {"loadtime": loading, "runtime": {"max_new_tokens": 9}},
    }
    seen = {"inputs": {"text": False, "image": True}, "tasks": {"extract": {}}, "profiles": profiles}
    config = loaded(seen)
    spec = config.resolve(Runtime())
    assert (spec.family, spec.apart) == ("glm_ocr", ())
    assert spec.profile(name).parameters["max_new_tokens"] == 9
    assert [line for line in config.notes() if f"profiles.{name}.adapter_path" in line and "loadtime" in line]


def test_a_profile_of_sglang_alone_is_not_served():
    with pytest.raises(UnbuiltFamily, match="SGLangVisionExtractAdapter"):
        loaded({"profiles": {"default": {"adapter_path": SGLANG}}}).resolve(Runtime())


def test_a_model_that_generates_text_is_refused_in_one_line():
    with pytest.raises(CatalogError, match=r"^new\.yaml: tasks\.generate: this server computes no text") as caught:
        loaded({"tasks": {"generate": {}}, "profiles.default.kv_budget_tokens": 7, "profiles.default.grammar": "x"})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "hf_tokenizer_dependencies",
        "profiles.default.adaptive_batching",
        "profiles.default.adapter_options.loadtime.cuda_graphs",
        "profiles.default.adapter_options.loadtime.fused_rope",
    ],
)
def test_a_key_that_only_tunes_sies_server_is_named_once(key):
    value = {"org/x": None} if key.startswith("hf") else {"enabled": False}
    again = {"profiles.again": {"extends": "default"}}
    notes = loaded({key: value, **again}).notes()
    assert [line.split(": ")[2] for line in notes] == [key]


def test_a_profile_with_smve_is_not_served_and_the_others_are():
    config = loaded({"profiles.smve": {"extends": "default", "adapter_options": {"runtime": {"smve": {}}}}})
    assert [each.name for each in config.resolve(Runtime()).profiles] == ["default"]
    assert [line for line in config.warnings() if "profiles.smve: is not served" in line]


def test_the_limit_of_texts_may_stand_under_loadtime():
    options = {"loadtime": {"max_seq_length": 100}, "runtime": {"normalize": True}}
    config = loaded({"profiles.default.adapter_options": options, "profiles.long": {"extends": "default"}})
    assert (config.resolve(Runtime()).max_sequence_length, config.apart) == (100, {})


def test_a_variant_is_found_by_its_name(directory):
    settings = read_settings(models_dir=directory)
    assert [model.sie_id for model in selected(settings, ["org/bge-m3.flag"]).models] == ["org/bge-m3.flag"]
    with pytest.raises(CatalogError, match=r"org/bge-m3\.none: no model file has this sie_id"):
        selected(read_settings(models_dir=directory, hf_fallback=False), ["org/bge-m3.none"])


def test_model_filter_selects_models_by_pattern(directory):
    found = selected(read_settings(models_dir=directory, model_filter="org/colbert*, org/st"), [])
    assert {model.sie_id for model in found.models} == {
        *("org/colbert", "org/colbert-modernbert", "org/colbert-rotary", "org/st")
    }
    with pytest.raises(CatalogError, match=r"model_filter: nobody/\*: matches no model of"):
        selected(read_settings(models_dir=directory, model_filter="nobody/*"), [])


def test_invalid_files_do_not_affect_valid_ones(directory, tmp_path):
    (tmp_path / "good.yaml").write_text((directory / "org__st.yaml").read_text())
    (tmp_path / "bad.yaml").write_text("sie_id: [")
    (tmp_path / "typo.yaml").write_text((directory / "org__bert.yaml").read_text().replace("pooling", "poling"))
    found = selected(read_settings(models_dir=tmp_path), [])
    assert [model.sie_id for model in found.models] == ["org/st"]
    assert [source.rpartition("/")[2] for source in found.problems] == ["bad.yaml", "typo.yaml"]
    (tmp_path / "good.yaml").unlink()
    with pytest.raises(CatalogError, match=r"(?s)bad\.yaml.*typo\.yaml"):
        selected(read_settings(models_dir=tmp_path), [])
