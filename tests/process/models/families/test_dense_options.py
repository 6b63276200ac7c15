"""Options of dense checkpoints in a model file, compared with transformers with the same settings."""

import json

import numpy as np
import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling
from transformers import AutoModel, AutoTokenizer

from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import LoadError
from tests.support.loading import load_adapter, token_batch
from tests.support.models import build, save_encoder

TEXTS = ["a short text", "something of a few more words, and a comma", "end"]


def spec(directory, dim=64, **options):
    return ModelSpec("my/m", str(directory), "sentence_transformer", {"dense": dim}, 512, 16384, options=options)


def ours(directory, ids, **options):
    adapter = load_adapter(spec(directory, **options), directory)
    return adapter.forward(token_batch(np.concatenate(ids), np.array([len(each) for each in ids], np.int32)))["dense"]


def theirs(directory, ids, pooling, *, sees_all):
    """Reference item by item; with `sees_all` a mask in which nothing is hidden."""
    model = AutoModel.from_pretrained(directory, attn_implementation="eager").eval()
    pool, vectors = Pooling(64, pooling_mode=pooling), []
    for each in ids:
        mask = torch.zeros(1, 1, len(each), len(each)) if sees_all else None
        with torch.inference_mode():
            states = model(torch.from_numpy(each[None].astype(np.int64)), attention_mask=mask).last_hidden_state
            said = {"token_embeddings": states, "attention_mask": torch.ones(1, len(each))}
            vectors.append(pool(said)["sentence_embedding"][0].numpy())
    return np.stack(vectors)


@pytest.fixture
def decoder(tmp_path, minilm_directory):
    """A plain checkpoint of transformers, and token ids of TEXTS."""
    save_encoder(tmp_path, minilm_directory, "qwen2")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    return tmp_path, [np.array(tokenizer(text)["input_ids"], np.int32) for text in TEXTS]


@pytest.mark.parametrize("options", [{"causal": False}, {"forward_kwargs": {"is_causal": False}}])
def test_a_decoder_can_see_all_of_a_text(decoder, options):
    directory, ids = decoder
    found = ours(directory, ids, pooling="mean", **options)
    np.testing.assert_allclose(found, theirs(directory, ids, "mean", sees_all=True), atol=1e-5)
    assert np.abs(found - theirs(directory, ids, "mean", sees_all=False)).max() > 1e-3


def test_a_checkpoint_can_request_bidirectional_attention(decoder):
    directory, ids = decoder
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "is_causal": False}))
    found = ours(directory, ids, pooling="mean")
    np.testing.assert_allclose(found, theirs(directory, ids, "mean", sees_all=True), atol=1e-5)
    told = ours(directory, ids, pooling="mean", causal=True)
    assert np.abs(found - told).max() > 1e-3


@pytest.mark.parametrize("options", [{}, {"causal": True}])
def test_a_decoder_is_causal_by_default(decoder, options):
    directory, ids = decoder
    found = ours(directory, ids, pooling="last_token", **options)
    np.testing.assert_allclose(found, theirs(directory, ids, "lasttoken", sees_all=False), atol=1e-5)


def test_another_dense_layer_than_the_usual(tmp_path, minilm_directory):
    model = build(tmp_path / "encoder", minilm_directory, dense=24, normalize=False)
    model.save(str(tmp_path / "model"))
    other = build(tmp_path / "other", minilm_directory, dense=48, normalize=False)
    (tmp_path / "model" / "2_Dense_48").mkdir()
    other[2].save(str(tmp_path / "model" / "2_Dense_48"))
    model[2] = other[2]
    ids = [np.array(model.tokenizer(text)["input_ids"], np.int32) for text in TEXTS]
    projection = {"dense_projection_path": "2_Dense_48", "dense_dim": 48}
    found = ours(tmp_path / "model", ids, dim=48, **projection)
    np.testing.assert_allclose(found, model.encode(TEXTS), atol=1e-5)
    with pytest.raises(LoadError, match="dense_dim: the model file says 96, but the layers give 48"):
        load_adapter(spec(tmp_path / "model", 48, **{**projection, "dense_dim": 96}), tmp_path / "model")
    with pytest.raises(LoadError, match="dense_projection_path: must be a path inside the model's directory"):
        load_adapter(spec(tmp_path / "model", 48, dense_projection_path="../other"), tmp_path / "model")
