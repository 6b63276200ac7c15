"""DeBERTa's attention in float16 with large weights, beside the library's own and float64."""

import copy

import pytest
import torch
from transformers import DebertaV2Config, DebertaV2Model

from sie_triton.engines.torch.attention import Segments, attending, make_packable

LENGTHS = (1, 5, 20, 20)
WIDTH = 64


def model_of(scale: float, seed: int) -> DebertaV2Model:
    """Model of one layer whose queries and keys are `scale` times the usual, and share a common component."""
    torch.manual_seed(seed)
    config = DebertaV2Config(
        vocab_size=100,
        hidden_size=WIDTH,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=WIDTH,
        relative_attention=True,
        pos_att_type=["c2p", "p2c"],
        position_buckets=32,
        max_relative_positions=64,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
        type_vocab_size=0,
    )
    model = DebertaV2Model(config).eval()
    attention = model.encoder.layer[0].attention.self
    with torch.no_grad():
        attention.value_proj.weight.mul_(50)
        for projection in (attention.query_proj, attention.key_proj):
            projection.weight.mul_(scale)
            projection.bias.fill_(scale)
    return model


@torch.inference_mode()
def errors(scale: float, seed: int) -> tuple[float, float]:
    """Root mean square difference of the library's states, and ours, from those in float64."""
    model = model_of(scale, seed)
    exact, half = copy.deepcopy(model).double(), model.half()
    ids = torch.randint(5, 100, (sum(LENGTHS),))

    def each_alone(model: DebertaV2Model) -> torch.Tensor:
        return torch.cat([model(input_ids=item[None]).last_hidden_state[0] for item in ids.split(LENGTHS)]).double()

    expected, theirs = each_alone(exact), each_alone(half)
    make_packable(half)
    with attending(Segments.of(LENGTHS)):
        ours = half(input_ids=ids[None]).last_hidden_state[0].double()
    return tuple(float((states - expected).square().mean().sqrt()) for states in (theirs, ours))


@pytest.mark.parametrize("scale", [1, 3, 5, 10])
def test_float16_is_no_less_exact_than_the_librarys(scale):
    theirs, ours = zip(*(errors(scale, seed) for seed in range(12)), strict=True)
    assert sum(ours) <= sum(theirs)


def test_scores_do_not_overflow_where_the_librarys_do_not():
    """Unscaled, they are larger than the largest number of float16."""
    theirs, ours = errors(40, 1)
    assert 0 < theirs < 1
    assert 0 < ours < 1
