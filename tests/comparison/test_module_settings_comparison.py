"""Settings in a model's files, each of which changes results, against sentence-transformers."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from tokenizers import Tokenizer

from benchmarks.architectures import sharpen
from sie_triton.checkpoints.modules import TextFiles
from sie_triton.checkpoints.sentence_transformers import SentenceTransformerFiles
from sie_triton.contract import Part
from sie_triton.contract.spec import Runtime
from sie_triton.errors import LoadError
from sie_triton.models.catalog.recognise import explain
from sie_triton.models.families import load_processor
from sie_triton.models.families.multivector.stanford_colbert import read_multi_vector
from sie_triton.models.inputs import kind_of
from sie_triton.models.inputs.request_parts import Framed, features_of
from sie_triton.models.inputs.tokenizer import TextTokenizer
from tests.support.copies import update
from tests.support.layouts import SETTINGS, changed, cross_encoder_before_6, dense, multi_vector, saved, splade
from tests.support.library_results import TEXTS, compare, ours, outcome, theirs
from tests.support.loading import with_tokenizers
from tests.support.models import SIZES, save_cross_encoder, save_encoder, save_tokenizer

BERT = "sentence_bert_config.json"
T0 = "Paris is the capital of France."


def gpt2(root, tokenizer, **config):
    torch.manual_seed(7)
    sizes = {"vocab_size": 30522, "n_embd": 64, "n_layer": 2, "n_head": 4, **config}
    transformers.GPT2Model(transformers.GPT2Config(**sizes)).save_pretrained(root)
    save_tokenizer(root, tokenizer)
    update(root / "tokenizer_config.json", model_max_length=10**30)
    modules = [Transformer(str(root)), Pooling(64, "mean")]
    SentenceTransformer(modules=modules, device="cpu").save(str(root / "model"), create_model_card=False)
    return root / "model"


def test_gpt2_reads_as_many_tokens_as_it_has_positions(tmp_path, minilm_directory):
    directory = gpt2(tmp_path, minilm_directory, n_positions=128)
    update(directory / "tokenizer_config.json", model_max_length=10**30)
    assert TextFiles.read(directory).max_sequence_length == 128
    assert outcome(directory) == "equal"


def served(build, tmp_path, minilm_directory):
    """Our results of a directory, after they were compared with the library's."""
    directory = build(tmp_path / "saved", minilm_directory)
    assert outcome(directory) == "equal"
    return ours(directory)


@pytest.mark.parametrize("idf", [False, True])
def test_a_sparse_model_keeps_its_largest_weights(idf, tmp_path, minilm_directory):
    build = changed(splade(idf=idf), SETTINGS, max_active_dims=16)
    found = served(build, tmp_path, minilm_directory)
    assert [np.count_nonzero(vector) for vector in found["document"]] == [16] * len(TEXTS)
    assert max(np.count_nonzero(vector) for vector in found["query"]) <= 16


def features_for(directory, text, is_query):
    """The processor's features of a text."""
    config, _ = explain(directory, "my/model", {"weights_path": str(directory)}, "")
    spec = config.resolve(Runtime("cpu"))
    processor = load_processor(spec, with_tokenizers(spec, directory))
    part = Part("text", [text], spec.profiles[0], is_query)
    return features_of(processor, [[Framed(part, processor.frame(part), kind_of(("text",)))]])[0]


def test_queries_that_are_looked_up_have_a_length_of_their_own(tmp_path, minilm_directory):
    build = changed(splade(idf=True), f"document_0_Transformer/{BERT}", max_seq_length=64)
    directory = build(tmp_path / "saved", minilm_directory)
    distinct = " ".join(sorted(set(_words(minilm_directory)))[:100])
    features = features_for(directory, distinct, True)
    assert len(features["lookup_ids"].values) == 100
    expected = SparseEncoder(str(directory), device="cpu").encode_query([distinct]).to_dense().numpy()[0]
    assert sorted(np.flatnonzero(expected)) == sorted(features["lookup_ids"].values)
    documents = features_for(directory, distinct, False)
    assert (len(documents["input_ids"].values), len(documents["lookup_ids"].values)) == (64, 0)


def _words(directory):
    vocabulary = Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab()
    return [word for word in vocabulary if word.isalpha() and word.isascii() and len(word) > 6]


@pytest.mark.parametrize(("default_route", "looked_up"), [("query", True), ("document", False), (None, True)])
def test_texts_without_a_role_take_the_default_route(default_route, looked_up, tmp_path, minilm_directory):
    directory = splade(idf=True)(tmp_path / "saved", minilm_directory)
    update(directory / "router_config.json", parameters__default_route=default_route)
    features = features_for(directory, T0, None)
    assert bool(len(features["lookup_ids"].values)) == looked_up
    library = SparseEncoder(str(directory), device="cpu").encode([T0]).to_dense().numpy()[0]
    assert (np.count_nonzero(library) < 20) == looked_up


@pytest.mark.parametrize(
    "settings",
    [
        {"query_length": 9},
        {"document_length": 7},
        {"max_seq_length": 12, "document_length": 40},
        {"query_expansion": {"strategy": "fixed", "length": 16, "attend": True}},
        {"query_expansion": {"strategy": "fixed", "length": 12}},
        {"query_expansion": {"strategy": "min", "length": 20, "attend": True}, "query_length": 30},
    ],
    ids=str,
)
def test_lengths_by_role_are_obeyed_outside_late_interaction(settings, tmp_path, minilm_directory, usual):
    directory = changed(dense(), BERT, **settings)(tmp_path / "saved", minilm_directory)
    found = ours(directory)
    for role, expected in theirs(directory).items():
        compare(found[role], expected)
    different = [role for role in found if not np.allclose(found[role], usual[role], atol=1e-3)]
    assert different == ["document" if "document_length" in settings else "query"] or "max_seq_length" in settings


def test_only_the_kept_tokens_of_documents_have_vectors(tmp_path, minilm_directory):
    kept = [101, 3000, 1997, 102, 10**6]
    build = changed(multi_vector, "2_MultiVectorMask/config.json", keep_only_token_ids=kept)
    directory = build(tmp_path / "saved", minilm_directory)
    assert outcome(directory) == "equal"
    assert read_multi_vector(directory).kept == tuple(kept)
    sizes = {role: [len(each) for each in found] for role, found in ours(directory).items()}
    assert sizes["document"] == [2, 2, 2, 2]
    assert min(sizes["query"]) > 4


def test_the_closing_token_may_fill_queries_up(tmp_path, minilm_directory):
    """The text's own closing token is attended to, those that fill the query up are not."""
    expansion = {"strategy": "fixed", "length": 24, "attend": False, "token": "[SEP]"}
    build = changed(multi_vector, BERT, query_expansion=expansion)
    found = served(build, tmp_path, minilm_directory)
    assert {len(each) for each in found["query"]} == {24}


def static(root, tokenizer, truncate_dim, *last):
    table = StaticEmbedding(Tokenizer.from_file(str(tokenizer / "tokenizer.json")), embedding_dim=16)
    model = SentenceTransformer(modules=[table, *last], device="cpu", truncate_dim=truncate_dim)
    model.save(str(root), create_model_card=False)
    return root


@pytest.mark.parametrize("last", [[], [Normalize()]], ids=["raw", "normalized"])
def test_static_vectors_are_truncated(last, tmp_path, minilm_directory):
    directory = static(tmp_path / "saved", minilm_directory, 5, *last)
    assert outcome(directory) == "equal"
    assert {len(vector) for vector in ours(directory)["document"]} == {5}


def test_truncated_vectors_are_not_normalized_again(tmp_path, minilm_directory):
    found = served(changed(dense(), SETTINGS, truncate_dim=10), tmp_path, minilm_directory)
    lengths = np.linalg.norm(found["document"], axis=1)
    assert {len(vector) for vector in found["document"]} == {10}
    assert (lengths < 0.99).all()


@pytest.mark.parametrize("said", [32, 128])
def test_poolings_file_does_not_change_the_size_of_vectors(said, tmp_path, minilm_directory):
    build = changed(dense(), "1_Pooling/config.json", embedding_dimension=said)
    found = served(build, tmp_path, minilm_directory)
    assert {len(vector) for vector in found["document"]} == {64}


@pytest.mark.parametrize("name", ["torch.nn.Identity", "torch.nn.modules.activation.GELU"])
def test_an_activation_has_any_of_its_names(name, tmp_path, minilm_directory):
    build = changed(dense(dense=48), "2_Dense/config.json", activation_function=name)
    assert outcome(build(tmp_path / "saved", minilm_directory)) == "equal"


PROJECTED = {
    "EmbeddingGemma 2": transformers.EmbeddingGemma2TextConfig(**SIZES, head_dim=16, embedding_dim=48, pad_token_id=0),
    "OPT": transformers.OPTConfig(**SIZES, word_embed_proj_dim=48, ffn_dim=128, pad_token_id=0),
}


@pytest.mark.parametrize("name", PROJECTED)
def test_states_may_be_projected_to_another_size(name, tmp_path, minilm_directory):
    build = saved(lambda: sharpen(transformers.AutoModel.from_config(PROJECTED[name])))
    found = served(build, tmp_path, minilm_directory)
    assert {len(vector) for vector in found["document"]} == {48}


STRAY = {
    SETTINGS: {"prompts": {"query": "q: ", "document": "d: "}, "truncate_dim": 4, "max_active_dims": 2},
    BERT: {"max_seq_length": 8, "do_lower_case": True, "tokenizer_args": {"model_max_length": 6}},
}


def test_stray_files_without_modules_are_ignored(tmp_path, minilm_directory):
    directory = dense(normalize=False, prompts={})(tmp_path / "saved", minilm_directory)
    for name, content in STRAY.items():
        (directory / name).write_text(json.dumps(content))
    (directory / "modules.json").unlink()
    files = SentenceTransformerFiles.read(directory)
    assert (files.text.prompts, files.text.max_sequence_length, files.dim) == ({}, 512, 64)
    assert files.text.tokenizer_kwargs == {}
    assert outcome(directory) == "equal"


@pytest.mark.parametrize("model_type", ["CrossEncoder", "SentenceTransformer"])
@pytest.mark.parametrize("has_modules", [True, False])
def test_settings_of_a_classifier_count_if_cross_encoder_saved_them(
    model_type, has_modules, tmp_path, minilm_directory
):
    directory = save_cross_encoder(tmp_path / "saved", minilm_directory)
    given = {"activation_fn": "torch.nn.modules.linear.Identity", "prompts": {"p": "Rate this: "}}
    settings = {"model_type": model_type, "default_prompt_name": "p", **given}
    (directory / SETTINGS).write_text(json.dumps(settings))
    update(directory / BERT, max_seq_length=12)
    if not has_modules:
        (directory / "modules.json").unlink()
    assert outcome(directory) == "equal"
    counts = has_modules and model_type == "CrossEncoder"
    assert TextFiles.read(directory).max_sequence_length == (12 if counts else 512)


def test_a_cross_encoder_of_old_keeps_its_activation(tmp_path, minilm_directory):
    build = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}
    directory = cross_encoder_before_6(tmp_path / "saved", minilm_directory, **build)
    (directory / SETTINGS).write_text(json.dumps({"activation_fn": "torch.nn.modules.activation.Tanh"}))
    assert outcome(directory) == "equal"


def test_the_tokenizers_own_length_goes_before_max_seq_length(tmp_path, minilm_directory):
    settings = {"max_seq_length": 64, "processor_kwargs": {"model_max_length": 32}}
    directory = changed(dense(), BERT, **settings)(tmp_path / "saved", minilm_directory)
    assert TextFiles.read(directory).max_sequence_length == 32
    assert outcome(directory) == "equal"


REFUSED = {
    BERT: [
        {"tokenizer_name_or_path": "org/other"},
        {"transformer_task": "fill-mask"},
        {"model_args": {"variant": "fp16"}},
        {"config_kwargs": {"num_hidden_layers": 1}},
        {"processing_kwargs": {"text": {"add_special_tokens": False}}},
        {"modality_config": {"message": {"method": "forward", "method_output_name": "last_hidden_state"}}},
        {"processor_kwargs": {"tokenizer_file": "other.json"}},
        {"processor_kwargs": {"pad_token": {"content": "[PAD]"}}},
        {"query_expansion": {"strategy": "fixed", "length": 10**6}},
        {"unheard_of": 1},
    ],
    "1_Pooling/config.json": [{"unheard_of": 1}],
    SETTINGS: [{"model_type": "SparseEncoder"}],
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory, minilm_directory):
    return dense()(tmp_path_factory.mktemp("plain"), minilm_directory)


@pytest.fixture(scope="module")
def usual(plain):
    """Results without further settings."""
    return ours(plain)


@pytest.mark.parametrize(("file", "keys"), [(file, keys) for file, each in REFUSED.items() for keys in each], ids=str)
def test_a_key_that_would_change_a_result_is_refused_by_name(file, keys, tmp_path, plain):
    directory = changed(lambda root, _: Path(shutil.copytree(plain, root)), file, **keys)(tmp_path / "saved", plain)
    with pytest.raises(LoadError) as refused:
        SentenceTransformerFiles.read(directory)
    assert refused.value.reason in ("unsupported", "corrupt")
    assert str(directory / file) in str(refused.value)
    assert next(iter(keys)) in str(refused.value)


def test_a_bare_model_reads_texts_without_its_chat_template_and_the_log_says_so(tmp_path, minilm_directory, caplog):
    save_encoder(tmp_path, minilm_directory, "qwen3")
    template = {"chat_template": "{% for each in messages %}user: {{ each['content'] }}{% endfor %}"}
    for change, is_rendered in (({}, False), (template, True)):
        update(tmp_path / "tokenizer_config.json", **change)
        caplog.clear()
        tokens = TextTokenizer.load(tmp_path, 512).encode(["ships sail"])["input_ids"].values.tolist()
        assert ("chat template" in caplog.text) == is_rendered
        library = SentenceTransformer(str(tmp_path), device="cpu")
        assert (library[0].preprocess(["ships sail"])["input_ids"].tolist() == [tokens]) != is_rendered
