"""Rotary positions that depend on the length of a text: each item gives what the library computes for it alone."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, LlamaConfig, NomicBertConfig, Phi3Config

from benchmarks.architectures import sharpen
from sie_triton.engines.torch.attention.rotations import rotate_each_item
from sie_triton.engines.torch.encoder import PACKED, PADDED, TorchEncoder, load_model
from sie_triton.engines.torch.probe import relative_error
from sie_triton.errors import LoadError

TRAINED = 64
LENGTHS = (20, TRAINED, TRAINED + 1, TRAINED + 2, 150, 100)
DYNAMIC = {
    "max_position_embeddings": TRAINED,
    "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1000.0},
}
FACTORS = {"short_factor": [1.0] * 8, "long_factor": [1.0 + i for i in range(8)]}
LONG = {
    "max_position_embeddings": 512,
    "original_max_position_embeddings": TRAINED,
    "rope_parameters": {"rope_type": "longrope", "rope_theta": 10000.0, **FACTORS},
    "pad_token_id": 0,
}
KINDS = {
    "dynamic, causal": (LlamaConfig, DYNAMIC),
    "dynamic, both ways": (NomicBertConfig, DYNAMIC),
    "longrope": (Phi3Config, LONG),
}
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


@pytest.mark.parametrize("kind", KINDS)
def test_an_item_is_rotated_by_its_own_length(kind, tmp_path):
    config, settings = KINDS[kind]
    torch.manual_seed(7)
    sharpen(AutoModel.from_config(config(vocab_size=1000, **SIZES, **settings))).save_pretrained(tmp_path)
    rng = np.random.default_rng(0)
    items = [rng.integers(10, 900, length, dtype=np.int32) for length in LENGTHS]
    expected = [alone(tmp_path, item) for item in items]
    encoder = TorchEncoder(load_model(tmp_path, torch.float32, "cpu"))
    for path in (PACKED, PADDED):
        encoder.use(path)
        for order in (range(len(items)), reversed(range(len(items)))):
            places = list(order)
            found = states_of(encoder, [items[place] for place in places])
            assert max(map(relative_error, found, [expected[place] for place in places])) < 1e-4
    assert not encoder.is_exportable


def alone(directory, item):
    """The library's states of an item, [tokens, d], by a model that has read nothing else."""
    model = AutoModel.from_pretrained(directory, attn_implementation="eager")
    with torch.inference_mode():
        return model(input_ids=torch.tensor(item[None], dtype=torch.long)).last_hidden_state[0]


def states_of(encoder, items):
    lengths = np.array([len(item) for item in items], np.int32)
    return torch.split(encoder.hidden_states(np.concatenate(items), lengths), lengths.tolist())


def test_rotations_that_differ_by_layer_and_length_are_refused():
    model = torch.nn.Module()
    vars(model)["rope_type"] = {"full_attention": "longrope", "sliding_attention": "default"}
    with pytest.raises(LoadError) as refused:
        rotate_each_item(model)
    assert refused.value.reason == "unsupported"
