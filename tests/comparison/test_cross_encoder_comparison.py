"""Scores of pairs equal those of sentence-transformers' CrossEncoder on the same weights."""

import numpy as np
import pytest
from sentence_transformers import CrossEncoder

from benchmarks.texts import texts
from sie_triton.engines.torch import heads
from sie_triton.errors import LoadError
from sie_triton.models.catalog.recognise import family_in
from tests.support.copies import update
from tests.support.models import save_cross_encoder
from tests.support.scorers import Scorer

QUERY = "how do vines climb, and why?"
SPECIAL = ["alpha [PAD] beta [PAD] gamma", "[PAD]", "[PAD] ends [SEP]", "begins [MASK] [UNK] [PAD][PAD]"]
TEXTS = ["", "x", "Stop. Look, listen!", "naïve 😀 日本語", *SPECIAL, *texts(4, seed=3), " ".join(texts(40, seed=4))]

# Which path each takes, and the state that its head reads.
ARCHITECTURES = [
    ("roberta", {}, "packed", "first"),
    ("distilbert", {}, "packed", "first"),
    ("electra", {}, "packed", "first"),
    ("albert", {}, "packed", "first"),
    ("modernbert", {"classifier_pooling": "mean"}, "packed", "mean"),
    ("jina", {}, "packed", "first"),
    # A convolution over the row.
    ("deberta", {"conv_kernel_size": 3, "conv_act": "gelu"}, "padded", "first"),
    ("deberta", {"share_att_key": True, "norm_rel_ebd": "layer_norm"}, "packed", "first"),
    ("deberta", {"pos_att_type": ["c2p"], "position_buckets": -1}, "packed", "first"),
    ("qwen3", {}, "packed", "last but padding"),
]


@pytest.mark.parametrize(("architecture", "config", "path", "reads"), ARCHITECTURES)
def test_scores_are_those_of_the_library(tmp_path, minilm_directory, architecture, config, path, reads):
    identity = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    directory = save_cross_encoder(tmp_path, minilm_directory, architecture, **config, **identity)
    assert family_in(directory)[0] == "cross_encoder"
    scorer = Scorer("cross_encoder", directory)
    assert scorer.adapter.encoder.path == path
    assert scorer.adapter._classifier._head._representative == reads
    expected = CrossEncoder(str(directory), device="cpu").predict([(QUERY, text) for text in TEXTS])
    scores = scorer(QUERY, TEXTS)
    close = {"atol": 1e-4 * expected.std(), "rtol": 1e-5}
    np.testing.assert_allclose(scores, expected, **close)
    alone = np.concatenate([scorer(QUERY, [text]) for text in TEXTS])
    np.testing.assert_allclose(scores, alone, **close)


@pytest.mark.parametrize("architecture", ["qwen3", "gemma3"])
def test_a_decoder_whose_texts_end_with_its_padding_reads_the_token_before(tmp_path, minilm_directory, architecture):
    """As a reranker made of Qwen3-Embedding."""
    closing = 102  # of MiniLM's tokenizer
    directory = save_cross_encoder(tmp_path, minilm_directory, architecture, pad_token_id=closing)
    reference = CrossEncoder(str(directory), device="cpu")
    expected = np.concatenate([reference.predict([(QUERY, text)]) for text in TEXTS])
    np.testing.assert_allclose(Scorer("cross_encoder", directory)(QUERY, TEXTS), expected, atol=1e-5)


def test_a_saved_prompt_is_the_default_instruction(tmp_path, minilm_directory):
    directory = save_cross_encoder(tmp_path, minilm_directory)
    update(directory / "config_sentence_transformers.json", prompts={"find": "find: "}, default_prompt_name="find")
    expected = CrossEncoder(str(directory), device="cpu").predict([(QUERY, text) for text in TEXTS])
    scorer = Scorer("cross_encoder", directory)
    np.testing.assert_allclose(scorer(QUERY, TEXTS), expected, atol=2e-5)
    np.testing.assert_array_equal(scorer(QUERY, TEXTS), scorer(QUERY, TEXTS, "find: "))
    assert np.abs(scorer(QUERY, TEXTS) - scorer(QUERY, TEXTS, "")).max() > 1e-3


def test_unsupported_classifiers_are_refused_with_the_reason(tmp_path, minilm_directory):
    three = save_cross_encoder(tmp_path / "three", minilm_directory, num_labels=3)
    with pytest.raises(LoadError, match="the classifier has 3 labels, but a score needs one; serve it as a sequence_"):
        Scorer("cross_encoder", three)
    own = save_cross_encoder(tmp_path / "own", minilm_directory)
    update(own / "config_sentence_transformers.json", activation_fn="os.abort")
    with pytest.raises(LoadError, match=r"activation 'os\.abort' is refused"):
        Scorer("cross_encoder", own)


def test_a_head_that_reads_something_else_is_refused(tmp_path, minilm_directory, monkeypatch):
    """Its output is compared with the whole model's."""
    directory = save_cross_encoder(tmp_path, minilm_directory)
    monkeypatch.delitem(heads.REPRESENTATIVES, "first")
    with pytest.raises(LoadError, match="its head reads neither"):
        Scorer("cross_encoder", directory)
