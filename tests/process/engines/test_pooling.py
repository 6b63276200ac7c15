"""Pooling equals its definition, computed an item at a time, with prompts of every length."""

import numpy as np
import pytest
import torch

from sie_triton.engines.torch.pooling import Pooling

MODES = ("cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean")
LENGTHS = (4, 1, 3, 6, 2)


def slowly(states, prompt, mode):
    """Pool one item [tokens, d] by definition. If only prompt tokens are left, they are pooled."""
    kept = states[prompt:] if prompt < len(states) else states
    if mode == "weightedmean":
        weights = np.arange(len(states) - len(kept), len(states))[:, None] + 1
        return (kept * weights).sum(0) / weights.sum()
    return {
        "cls": lambda: kept[0],
        "lasttoken": lambda: states[-1],
        "max": lambda: kept.max(0),
        "mean": lambda: kept.mean(0),
        "mean_sqrt_len_tokens": lambda: kept.sum(0) / np.sqrt(len(kept)),
    }[mode]()


@pytest.mark.parametrize("prompt", range(8))
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("of_items", [LENGTHS, (4,), (1,)])
def test_pooling(of_items, mode, prompt):
    states = np.random.default_rng(prompt).normal(size=(sum(of_items), 5)).astype(np.float32)
    lengths, prompts = np.array(of_items, np.int32), np.full(len(of_items), prompt, np.int32)
    items = np.split(states, np.cumsum(lengths)[:-1])
    expected = np.stack([slowly(item, prompt, mode) for item in items])
    np.testing.assert_allclose(
        Pooling(lengths, prompts, (mode,))(torch.from_numpy(states)), expected, rtol=1e-5, atol=1e-6
    )


def test_several_modes_stand_side_by_side():
    states = torch.arange(6.0).reshape(3, 2)
    pool = Pooling(np.array([3], np.int32), np.zeros(1, np.int32), ("cls", "max"))
    assert pool(states).tolist() == [[0, 1, 4, 5]]
