from pathlib import Path

import pytest

from sie_triton.contract.spec import ModelSpec, MuveraConfig, Runtime
from sie_triton.errors import CatalogError
from sie_triton.models.catalog import load_file, recognise, select, starter_set
from tests.conftest import MINILM, model_file, tiny_model_file

MODEL_FILE = """
sie_id: org/name
hf_id: org/name
hf_revision: abc
inputs: {text: true, image: false, audio: false, video: false}
tasks:
  encode:
    dense: {dim: 384}
    sparse: null
    multivector: null
  score: null
  extract: null
max_sequence_length: 256
profiles:
  default:
    max_batch_tokens: 8192
    compute_precision: null
    adapter_path: sie_server.adapters.sentence_transformer:SentenceTransformerDenseAdapter
    adapter_options:
      loadtime: {trust_remote_code: false}
      runtime: {pooling: cls, normalize: false}
  child:
    extends: default
    max_batch_tokens: 4096
    adapter_options:
      runtime: {pooling: mean}
"""


PLAIN = "runtime: {pooling: cls, normalize: false}"


def load(tmp_path: Path, text: str):
    path = tmp_path / "model.yaml"
    path.write_text(text)
    return load_file(path)


def test_a_model_file_of_the_reference_is_read_unchanged(tmp_path):
    spec = load(tmp_path, MODEL_FILE).resolve(Runtime())
    assert (spec.model, spec.weights, spec.family) == ("org/name", "hub://org/name@abc", "sentence_transformer")
    assert (spec.dims, spec.max_batch_cost, spec.options) == ({"dense": 384}, 8192, {"pooling": "cls"})
    assert spec.profiles[0].parameters == {"output_types": "dense", "normalize": False}


def test_a_models_own_precision_beats_the_default(tmp_path):
    runtime = Runtime(precision="float32")
    assert load(tmp_path, MODEL_FILE).resolve(runtime).runtime.precision == "float32"
    own = MODEL_FILE.replace("compute_precision: null", "compute_precision: bfloat16")
    assert load(tmp_path, own).resolve(runtime).runtime.precision == "bfloat16"


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("max_sequence_length: 256", "max_sequence_length: 0", "max_sequence_length: must be greater than 0"),
        ("max_sequence_length: 256", "max_seq: 1", "max_seq: unknown key; allowed keys are sie_id, hf_id"),
        ("dense: {dim: 384}", "dense: {size: 1}", "tasks.encode.dense.size: unknown key; allowed keys are dim"),
        ("dense: {dim: 384}", "own: {size: 1}", "tasks.encode.own.size: unknown key; allowed keys are dim"),
        ("pooling: cls", "pooling: first", "'cls', 'max', 'mean'"),
        ("runtime: {pooling: mean}", "runtime: {pool: mean}", "runtime.pool: unknown key; allowed keys are normalize,"),
        ("compute_precision: null", "compute_precision: int4", "'float32', 'bfloat16', 'float16' or 'int8'"),
        ("hf_id: org/name", "hf_id: org/name\nweights_path: here", "exactly one of hf_id, weights_path"),
        ("extends: default", "extends: other", "there is no profile 'other'; this file has default, child"),
        ("extends: default", "extends: child", "extends is circular: child extends child"),
        ("  default:", "  main:", "a profile named default is required"),
        ("sie_id: org/name", "sie_id: a/b/c", "sie_id"),
        ("tasks:", "tasks: [", "not valid YAML"),
        ("sparse: null", "sparse: {dim: 30522}", "tasks: encode.sparse cannot be served; the family"),
        ("score: null", "score: {}", "tasks: score cannot be served"),
        (":SentenceTransformerDenseAdapter", ":Other", "families are bge_m3, "),
        (PLAIN, "runtime: {query_template: 'query: '}", "must contain {text} once"),
        (PLAIN, "runtime: {query_template: '{text} {text}'}", "must contain {text} once"),
        (PLAIN, "runtime: {doc_template: '{text} {title}'}", "no other braces"),
        (PLAIN, "runtime: {doc_template: '{text} {'}", "no other braces"),
        (PLAIN, "runtime: {doc_template: '{text}{instruction}{instruction}'}", "{instruction} at most once"),
        (PLAIN, "runtime: {output_types: [sparse]}", "output_types: must be among dense (given sparse)"),
    ],
)
def test_a_bad_model_file_names_file_key_and_legal_values(tmp_path, old, new, complaint):
    with pytest.raises(CatalogError) as caught:
        load(tmp_path, MODEL_FILE.replace(old, new)).resolve(Runtime())
    assert complaint in str(caught.value)
    assert "model.yaml" in str(caught.value)
    assert "Value error" not in str(caught.value)  # pydantic's words


def test_the_starter_set_serves():
    assert [model.resolve(Runtime()).model for model in starter_set()] == ["sentence-transformers/all-MiniLM-L6-v2"]


def test_sequence_length_comes_from_the_directory(minilm_directory):
    assert recognise(minilm_directory, "m", {"weights_path": "x"}).max_sequence_length == 256


@pytest.mark.parametrize("name", ["./nowhere", "a/b/c", "word", "~nobody-of-that-name/x", "x" * 5000, "a\0b"])
def test_an_unknown_name_is_refused_before_any_download(name):
    with pytest.raises(CatalogError, match="no model file has this sie_id"):
        select([name], None, allow_hub=False)


def test_a_hub_id_that_is_not_cached_is_refused_without_the_hub():
    with pytest.raises(CatalogError, match="not in the local cache"):
        select(["nobody/nothing"], None, allow_hub=False)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("BAAI/bge-m4", "BAAI/bge-m3"),
        ("baai/BGE-m3", "BAAI/bge-m3"),
        ("my/tinny", "my/tiny"),
        ("sentence-transformers/all-MiniLM-L6-v3", MINILM),
    ],
)
def test_a_misspelt_name_gets_the_nearest_one_in_its_error(tmp_path, tiny_directory, name, meant):
    (tmp_path / "tiny.yaml").write_text(tiny_model_file("my/tiny", tiny_directory))
    with pytest.raises(CatalogError, match=f"^{name}: .*; did you mean {meant}[?]$"):
        select([name], tmp_path, allow_hub=False)


def test_a_model_file_can_be_named(tmp_path, tiny_directory, monkeypatch):
    path = tmp_path / "tiny.yaml"
    path.write_text(tiny_model_file("my/tiny", tiny_directory))
    monkeypatch.chdir(tmp_path)
    for name in (str(path), "tiny.yaml", "./tiny.yaml"):
        (model,) = select([name], None, allow_hub=False).models
        assert (model.sie_id, model.source) == ("my/tiny", str(path))
    with pytest.raises(CatalogError, match=f"^{tmp_path}/nope.yaml: cannot be read"):
        select(["nope.yaml"], None, allow_hub=False)


def test_own_models_join_the_starter_set(tmp_path):
    (tmp_path / "mine.yaml").write_text(MODEL_FILE)
    assert [m.sie_id for m in select([], tmp_path, allow_hub=False).models] == ["org/name", "org/name.child"]
    assert [m.sie_id for m in select(["org/name"], tmp_path, allow_hub=False).models] == ["org/name", "org/name.child"]


def test_muvera_is_resolved_and_needs_multivectors(tmp_path, minilm_directory):
    runtime = {"muvera": {"num_repetitions": 8, "projection_dim": 8}}
    path = tmp_path / "m.yaml"
    path.write_text(
        model_file("my/m", tmp_path, "multivector", {"encode": {"multivector": {"dim": 32}}}, runtime=runtime)
    )
    spec = load_file(path).resolve(Runtime())
    assert spec.dims == {"multivector": 32, "muvera": 10240}
    assert spec.muvera == MuveraConfig(num_repetitions=8, projection_dim=8)
    assert ModelSpec.from_json(spec.to_json()) == spec
    path.write_text(
        model_file("my/m", tmp_path, "sentence_transformer", {"encode": {"dense": {"dim": 32}}}, runtime=runtime)
    )
    with pytest.raises(CatalogError, match=r"adapter_options.runtime.muvera: needs tasks.encode.multivector"):
        load_file(path).resolve(Runtime())
    path.write_text(model_file("my/m", tmp_path, "splade", {"encode": {"dense": {"dim": 32}}}))
    with pytest.raises(CatalogError, match=r"encode.dense cannot be served; the family splade has encode.sparse"):
        load_file(path).resolve(Runtime())


COLBERT_FILE = """
sie_id: org/colbert
hf_id: org/colbert
inputs: {text: true, image: false, audio: false, video: false}
tasks:
  encode: {dense: null, sparse: null, multivector: {dim: 96}}
  score: {}
  extract: null
max_sequence_length: 512
profiles:
  default:
    max_batch_tokens: 16384
    adapter_path: sie_server.adapters.colbert:ColBERTAdapter
    adapter_options:
      loadtime:
        muvera_config: {num_repetitions: 40, num_simhash_projections: 6, projection_dim: 8, final_projection_dim: null}
      runtime: {max_seq_length: 300, muvera: null}
  muvera:
    extends: default
    adapter_options:
      runtime: {max_seq_length: 300, muvera: {}, output_types: [dense], output_similarity: {dense: cosine}}
  other:
    extends: default
    compute_precision: bfloat16
"""


def test_profiles_that_share_the_weights_are_served(tmp_path):
    """A profile of SIE's own files turns MUVERA on and calls its encoding dense."""
    spec = load(tmp_path, COLBERT_FILE).resolve(Runtime())
    assert [profile.name for profile in spec.profiles] == ["default", "muvera"]
    assert list(spec.dims) == ["multivector", "muvera"]
    assert spec.profile("default").parameters["output_types"] == "multivector"
    assert spec.profile("muvera").parameters["output_types"] == "muvera"
    assert spec.muvera == MuveraConfig(projection_dim=8, final_projection_dim=None)
    assert (spec.tasks, spec.score_modes, spec.max_sequence_length) == (("encode", "score"), ("maxsim",), 300)
    assert ModelSpec.from_json(spec.to_json()) == spec


def test_a_model_cannot_score_without_the_outputs_for_it(tmp_path):
    text = COLBERT_FILE.replace("colbert:ColBERTAdapter", "bge_m3:BGEM3Adapter")
    text = text.replace("sparse: null, multivector:", "multivector: null, sparse:")
    assert load(tmp_path, text.replace("muvera: {}, ", "").replace("[dense]", "[sparse]")).resolve(
        Runtime()
    ).score_modes == ("sparse",)
    for family, complaint in (
        ("splade_flash:SPLADEFlashAdapter", "score cannot be served; the family splade has encode.sparse"),
        ("sentence_transformer:SentenceTransformerDenseAdapter", "has encode.dense"),
    ):
        with pytest.raises(CatalogError, match=complaint):
            load(tmp_path, COLBERT_FILE.replace("colbert:ColBERTAdapter", family)).resolve(Runtime())


@pytest.mark.parametrize("name", ["my/m-score", "my/m-inference"])
def test_model_names_must_not_end_in_a_step_suffix(tmp_path, name, minilm_directory):
    with pytest.raises(CatalogError, match=r"sie_id: .*must not end in -preprocess"):
        load(tmp_path, MODEL_FILE.replace("sie_id: org/name", f"sie_id: {name}"))
    with pytest.raises(CatalogError, match="must not end in -preprocess"):
        recognise(minilm_directory, name, {"weights_path": str(minilm_directory)})
