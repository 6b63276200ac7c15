"""Vectors with LoRA adapters, several in one forward pass, equal those of peft over the same weights."""

import numpy as np
import pytest
import torch

from benchmarks.texts import texts
from sie_triton.contract.spec import Runtime
from sie_triton.engines.torch.encoder import PADDED
from tests.support.loras import LEAST_COSINE, Encoding, draw_biases, least_cosine
from tests.support.models import save_bert

TEXTS = ["", "x", "naïve 😀 日本語", *texts(8, seed=3), " ".join(texts(20, seed=4))]

# Adapter of each item.
MIXED = [("", "one", "other")[i % 3] for i in range(len(TEXTS))]

DENSE_OF_BERT = ["query", "key", "value", "dense"]
PATTERNS = {"rank_pattern": {"value": 2, r"layer.1.output.dense": 6}, "alpha_pattern": {"layer.0.*query": 3.5}}

# Architecture, path, and two adapters. BERT's first layers are prepacked with fused GELU and residuals.
CASES = {
    "bert": (
        "packed",
        {"target_modules": DENSE_OF_BERT, **PATTERNS},
        {"target_modules": ["query", "dense"], "use_dora": True, "r": 3},
    ),
    "xlm-roberta": (
        "packed",
        {"target_modules": ["query", "value", "word_embeddings"], "use_rslora": True},
        {"target_modules": ["key"], "modules_to_save": ["word_embeddings", "intermediate.dense"]},
    ),
    "mpnet": ("padded", {"target_modules": ["q", "k", "v", "dense"]}, {"target_modules": ["o"], "use_dora": True}),
    "modernbert": (
        "packed",
        {"target_modules": "all-linear", "lora_bias": True},
        {"target_modules": ["Wqkv"], "use_dora": True},
    ),
    "deberta-shared": (
        "packed",
        {"target_modules": "all-linear", "use_dora": True},
        {"target_modules": ["value_proj", "dense"]},
    ),
    "gpt2": (
        "packed",
        {"target_modules": ["c_attn", "c_fc", "wte"], "fan_in_fan_out": True, "use_dora": True},
        {"target_modules": ["c_proj"], "fan_in_fan_out": True, "modules_to_save": ["mlp.c_fc"]},
    ),
    "gemma3": (
        "packed",
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"target_modules": ["o_proj"], "modules_to_save": ["embed_tokens"]},
    ),
}


@pytest.mark.parametrize("architecture", CASES)
def test_vectors_are_those_of_peft(tmp_path, minilm_directory, architecture):
    path, *configs = CASES[architecture]
    model = Encoding(draw_biases(save_bert(tmp_path, minilm_directory, architecture)))
    assert model.encoder.path == path
    base = model(TEXTS)
    of_peft = {"": base}
    for name, config in zip(("one", "other"), configs, strict=True):
        of_peft[name] = model.by_peft(TEXTS, model.add(name, tmp_path / name, **config))
        alone = model(TEXTS, name)
        assert least_cosine(alone, of_peft[name]) >= LEAST_COSINE
        np.testing.assert_allclose(alone, of_peft[name], atol=1e-5)
        assert least_cosine(base, of_peft[name]) < 0.99  # negative control: the base differs
    mixed = model(TEXTS, MIXED)
    for row, name in enumerate(MIXED):
        np.testing.assert_allclose(mixed[row], of_peft[name][row], atol=1e-5, err_msg=f"{row} {name}")
    np.testing.assert_allclose(mixed[::3], base[::3], atol=1e-6)
    np.testing.assert_array_equal(model(TEXTS), base)


@pytest.fixture(scope="module")
def bert(tmp_path_factory, minilm_directory):
    """BERT with the adapter `one` on all linear layers."""
    root = tmp_path_factory.mktemp("bert")
    model = Encoding(save_bert(root, minilm_directory))
    model.add("one", root / "one", target_modules=DENSE_OF_BERT)
    return model


@pytest.mark.parametrize("targets", [DENSE_OF_BERT, ["position_embeddings", "query"]])
def test_the_padded_path_gives_the_same(bert, tmp_path, targets):
    """Padded batches share position embeddings; an adapter that changes them needs a pass of its own."""
    adapted = bert.add("padded", tmp_path / "lora", target_modules=targets, seed=3)
    packed, base = bert(TEXTS, "padded"), bert(TEXTS)
    np.testing.assert_allclose(packed, bert.by_peft(TEXTS, adapted), atol=1e-5)
    bert.encoder.use(PADDED)
    try:
        bert.encoder.add_lora("padded", tmp_path / "lora")
        mixed = bert(TEXTS, [("padded", "one", "")[i % 3] for i in range(len(TEXTS))])
        np.testing.assert_allclose(mixed[::3], packed[::3], atol=1e-5)
        np.testing.assert_allclose(mixed[1::3], bert(TEXTS, "one")[1::3], atol=1e-5)
        np.testing.assert_allclose(mixed[2::3], base[2::3], atol=1e-5)
    finally:
        bert.encoder.use("packed")
        bert.encoder.remove_lora("padded")


def test_spare_rows_and_long_batches(bert):
    """Spare rows, added to batches of 512 tokens or more, belong to no item."""
    many = texts(60, seed=9)
    names = [("one", "")[i % 2] for i in range(len(many))]
    mixed, alone = bert(many, names), bert(many, "one")
    np.testing.assert_allclose(mixed[::2], alone[::2], atol=1e-5)
    np.testing.assert_allclose(alone[:1], bert(many[:1], "one"), atol=1e-5)


def test_in_bfloat16(tmp_path, minilm_directory):
    """Adapters run in the base's precision, including GELU, LayerNorm and DoRA's norms."""
    directory = save_bert(tmp_path, minilm_directory)
    model = Encoding(directory, runtime=Runtime(precision="bfloat16"))
    assert model.encoder.dtype == torch.bfloat16
    for name, is_dora in (("plain", False), ("dora", True)):
        adapted = model.add(name, tmp_path / name, target_modules=DENSE_OF_BERT, use_dora=is_dora)
        expected = model.by_peft(TEXTS, adapted)
        assert least_cosine(model(TEXTS, name), expected) > 0.99
        assert least_cosine(model(TEXTS), expected) < 0.9
