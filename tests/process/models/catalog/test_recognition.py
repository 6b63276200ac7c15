"""Directories as libraries save them are recognised, and give the same results as their own library."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
import transformers

from sie_triton.models.catalog import load_file
from sie_triton.models.catalog.recognise import explain, to_yaml
from tests.support.layouts import (
    ASKING,
    PROMPTS,
    SETTINGS,
    STANFORD,
    Build,
    architecture,
    bare,
    bare_with_head,
    changed,
    cross_encoder_before_6,
    dense,
    in_parts,
    multi_vector,
    renamed,
    saved,
    splade,
)
from tests.support.library_results import outcome
from tests.support.models import save_bge_m3, save_cross_encoder, save_pylate, save_stanford


class Layout(NamedTuple):
    """Expectations of a directory: its family, its maximum number of tokens, and a part of the reason."""

    build: Build
    family: str
    max_length: int
    reason: str
    runtime: Mapping[str, Any] = MappingProxyType({})
    pooling: str | None = None
    named: str = ""  # the family, if the files alone do not determine it


def t5_encoder() -> transformers.T5EncoderModel:
    sizes = {"vocab_size": 30522, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(7)
    return transformers.T5EncoderModel(transformers.T5Config(**sizes))


def dense_layout(build: Build, length: int, reason: str, pooling: str | None, **runtime: Any) -> Layout:
    return Layout(build, "sentence_transformer", length, reason, {"normalize": True, **runtime}, pooling)


NO_NORMALIZE = {"normalize": False}
NO_TYPE = changed(save_pylate, SETTINGS, model_type=None, query_prefix="[unused0]")
OWN_ACTIVATION = {"sentence_transformers": {"activation_fn": "torch.nn.modules.activation.Tanh", "version": "4.0.1"}}
OLD_ACTIVATION = {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}

LAYOUTS = {
    "dense 6": dense_layout(dense(pooling="cls"), 512, "Transformer, Pooling (cls), Normalize; ", "cls", **ASKING),
    "dense 6, its documents' prompt for all": dense_layout(
        changed(dense(), SETTINGS, default_prompt_name="document"),
        512,
        "prompts document 'text: ', query 'search for: '",
        "mean",
        **ASKING,
    ),
    "dense 6, prompt not pooled": dense_layout(dense(include_prompt=False), 512, "(mean)", "mean", **ASKING),
    "dense 6, cut vectors": dense_layout(
        changed(dense(), SETTINGS, truncate_dim=24), 512, "the first 24 entries", "mean", **{**ASKING, **NO_NORMALIZE}
    ),
    "dense 6, two modes": dense_layout(dense(pooling=("cls", "mean")), 512, "Pooling (cls, mean)", None, **ASKING),
    "dense 5": dense_layout(dense("5.0.0", pooling="weightedmean"), 128, "(weightedmean)", "weightedmean", **ASKING),
    "dense 5, two modes": dense_layout(dense("5.0.0", pooling=("max", "lasttoken")), 128, "(max, ", None, **ASKING),
    "dense 3": dense_layout(
        dense("3.0.0", pooling="lasttoken", dense=24), 128, "(lasttoken), Dense (24), Normalize", "lasttoken", **ASKING
    ),
    "dense 2.2, a layer that is pickled, too": dense_layout(
        dense("2.2.2", pooling="max", dense=24, normalize=False, prompts={}),
        128,
        "modules.json: Transformer, Pooling (max), Dense (24)",
        "max",
        **NO_NORMALIZE,
    ),
    "dense 1.2": dense_layout(
        dense("1.2.0", pooling="mean_sqrt_len_tokens"), 128, "(mean_sqrt_len_tokens)", "mean_sqrt_len_tokens"
    ),
    "dense 1.2, lower case": dense_layout(
        changed(dense("1.2.0"), "0_Transformer/sentence_bert_config.json", do_lower_case=True), 128, "(mean)", "mean"
    ),
    "dense 1.2 of RoBERTa": dense_layout(
        renamed(
            dense("1.2.0", architecture="roberta"),
            "0_Transformer/sentence_bert_config.json",
            "0_Transformer/sentence_roberta_config.json",
        ),
        128,
        "(mean)",
        "mean",
    ),
    "T5's encoder": dense_layout(
        changed(saved(t5_encoder), "config.json", is_encoder_decoder=True),
        512,
        "T5EncoderModel without",
        "mean",
        **NO_NORMALIZE,
    ),
    "a language model that embeds": dense_layout(architecture("Qwen3, causal"), 512, "(lasttoken)", "lasttoken"),
    "transformers' encoder": dense_layout(
        bare(), 512, "config.json: BertModel without modules.json", "mean", **NO_NORMALIZE
    ),
    "transformers' encoder, in parts": dense_layout(in_parts, 512, "BertModel", "mean", **NO_NORMALIZE),
    "transformers' encoder, nameless": dense_layout(
        changed(bare("distilbert"), "config.json", architectures=None), 512, "a transformer", "mean", **NO_NORMALIZE
    ),
    "a language model, named": dense_layout(
        bare_with_head("CausalLM", "qwen3"), 512, "Qwen3ForCausalLM", "lasttoken", **NO_NORMALIZE
    )._replace(named="sentence_transformer"),
    "a masked language model, named dense": dense_layout(
        bare_with_head("MaskedLM"), 512, "BertForMaskedLM", "mean", **NO_NORMALIZE
    )._replace(named="sentence_transformer"),
    "a masked language model, named sparse": Layout(
        bare_with_head("MaskedLM"), "splade", 512, "SpladePooling (max, relu)", named="splade"
    ),
    "sparse 6": Layout(splade(), "splade", 512, "modules.json: Transformer, SpladePooling (max, relu)"),
    "sparse 5": Layout(changed(splade("5.0.0"), SETTINGS, prompts=PROMPTS), "splade", 128, "SpladePooling", ASKING),
    "sparse 6, queries without a forward pass": Layout(
        splade(idf=True), "splade", 512, "queries SparseStaticEmbedding"
    ),
    "sparse 5, queries without a forward pass": Layout(splade("5.0.0", idf=True), "splade", 512, "SparseStatic"),
    "late interaction 6": Layout(
        multi_vector, "multivector", 512, "MultiVectorMask: Transformer, Dense (32), Normalize"
    ),
    "PyLate": Layout(save_pylate, "multivector", 180, "PyLate's: Transformer, Dense (32)"),
    "PyLate before sentence-transformers 5": Layout(NO_TYPE, "multivector", 180, "PyLate's"),
    "Stanford's ColBERT": Layout(
        lambda root, tokenizer: save_stanford(root, tokenizer, STANFORD), "multivector", 512, "artifact.metadata"
    ),
    "Stanford's ColBERT, no metadata": Layout(
        lambda root, tokenizer: save_stanford(root, tokenizer, None), "multivector", 512, "HF_ColBERT"
    ),
    "cross-encoder 6": Layout(save_cross_encoder, "cross_encoder", 512, "BertForSequenceClassification with 1 label"),
    "cross-encoder 4": Layout(
        lambda root, tokenizer: cross_encoder_before_6(root, tokenizer, **OWN_ACTIVATION), "cross_encoder", 512, "Tanh"
    ),
    "cross-encoder 2": Layout(
        lambda root, tokenizer: cross_encoder_before_6(root, tokenizer, **OLD_ACTIVATION),
        "cross_encoder",
        512,
        "1 label, Identity",
    ),
    "transformers' classifier": Layout(
        bare_with_head("SequenceClassification", "roberta", num_labels=1), "cross_encoder", 512, "Sigmoid"
    ),
    "BGE-M3": Layout(
        save_bge_m3,
        "bge_m3",
        512,
        "sparse_linear.safetensors and colbert_linear.safetensors; ",
        {"normalize": True},
        "cls",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_recognised_directory_matches_its_library(name, tmp_path, minilm_directory):
    layout = LAYOUTS[name]
    directory = layout.build(tmp_path / "saved", minilm_directory)
    config, reason = explain(directory, "my/model", {"weights_path": str(directory)}, layout.named)
    profile = config.profile("default")
    assert (config.family, config.max_sequence_length) == (layout.family, layout.max_length)
    assert profile.adapter_options.runtime.model_dump(exclude_unset=True) == layout.runtime
    assert profile.adapter_options.loadtime.own.get("pooling") == layout.pooling
    assert layout.reason in reason
    assert outcome(directory, layout.named) == "equal"
    path = tmp_path / "model.yaml"
    path.write_text(to_yaml(config, reason))
    assert path.read_text().startswith(f"# {reason}\nsie_id: my/model\nweights_path: ")
    assert load_file(path).record_source(directory, reason) == config
