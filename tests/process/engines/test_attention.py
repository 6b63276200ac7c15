"""The kernels against the formula in float64, with every window, grouped heads and awkward lengths."""

import pytest
import torch

from sie_triton.engines.torch import cpu_kernels as native
from sie_triton.engines.torch.attention import attending, kernels
from sie_triton.engines.torch.attention.kernels import KERNELS, choose_kernel
from sie_triton.engines.torch.attention.packed import packed_attention
from sie_triton.engines.torch.attention.segments import Segments
from tests.support.attention import LENGTHS, WINDOWS, formula, tensors

HERE = ("native", "sdpa", "eager")

HEADS = [(12, 12, 32), (8, 2, 64), (4, 1, 128), (2, 2, 80), (3, 3, 20)]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
@pytest.mark.parametrize("name", HERE)
def test_a_kernel_computes_the_formula(name, heads, kv_heads, width, window):
    query, key, value = tensors(heads, kv_heads, width, sum(LENGTHS))
    arguments = (3 * query, key, value), width**-0.5, window
    ours = KERNELS[name](*arguments[0], Segments.of(LENGTHS), *arguments[1:])
    torch.testing.assert_close(ours.double(), formula(*arguments[0], LENGTHS, *arguments[1:]), atol=2e-5, rtol=0)


# Neighbours of one length that differ in their keys.
WITH_KEYS = (5, 5, 5, 17, 17, 40), (5, 3, 3, 16, 9, 33)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (30, 10), (2, 2)], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
@pytest.mark.parametrize("name", KERNELS)
def test_non_key_tokens_are_not_attended_to(name, heads, kv_heads, width, window):
    """A query without keys in its window gets 0. Kernels for GPUs leave items on a CPU to PyTorch's kernel."""
    lengths, keys = WITH_KEYS
    query, key, value = tensors(heads, kv_heads, width, sum(lengths))
    ours = KERNELS[name](query, key, value, Segments.of(lengths, keys), 0.3, window)
    expected = formula(query, key, value, lengths, 0.3, window, keys).nan_to_num()
    torch.testing.assert_close(ours.double(), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("window", [(-1, 0), (30, 10), (0, 0), (10, -1)], ids=str)
def test_masks_are_made_for_few_queries_at_a_time(monkeypatch, window):
    monkeypatch.setattr(kernels, "BLOCK", 16)
    made, visible = [], kernels.visible

    def noted(*args):
        made.append(visible(*args))
        return made[-1]

    monkeypatch.setattr(kernels, "visible", noted)
    lengths, keys = (90, 90, 17, 40), (90, 60, 17, 33)
    query, key, value = tensors(4, 2, 32, sum(lengths))
    ours = KERNELS["sdpa"](query, key, value, Segments.of(lengths, keys), 0.3, window)
    expected = formula(query, key, value, lengths, 0.3, window, keys)
    torch.testing.assert_close(ours.double(), expected.nan_to_num(), atol=2e-5, rtol=0)
    assert max(mask.shape[0] for mask in made) == 16
    assert (max(mask.shape[1] for mask in made) < 60) == (min(window) >= 0)


def test_adjacent_items_of_equal_lengths_and_keys_form_one_run():
    lengths, keys = WITH_KEYS
    assert Segments.of(lengths, keys).runs == ((1, 5, 5), (2, 5, 3), (1, 17, 16), (1, 17, 9), (1, 40, 33))
    assert not Segments.of(lengths, keys).all_are_keys
    assert Segments.of(lengths).all_are_keys
    assert Segments.of(lengths, lengths) == Segments.of(lengths)


@pytest.mark.parametrize(("scaling", "used"), [(None, 64**-0.5), (0.3, 0.3)])
def test_default_scaling_follows_the_head_width(scaling, used):
    query, key, value = tensors(4, 2, 64, sum(LENGTHS))
    with attending(Segments.of(LENGTHS)):
        ours, _ = packed_attention(torch.nn.Identity(), query, key, value, None, scaling=scaling)
    torch.testing.assert_close(ours.double(), formula(query, key, value, LENGTHS, used, (-1, -1)), atol=2e-5, rtol=0)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_native_kernel_is_built_here_and_does_not_mix_items(threads):
    """A neighbour full of NaN changes nothing: items never meet, not even in a masked product."""
    assert native.is_built()
    assert choose_kernel("auto", torch.device("cpu"), torch.float32) == "native"
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    x = torch.randn(1, 4, 40, 32)
    clean = native.attention(x, x, x, (13, 27), (13, 27), 0.2, (-1, -1))
    x[:, :, :13] = torch.nan
    spoiled = native.attention(x, x, x, (13, 27), (13, 27), 0.2, (-1, -1))
    torch.set_num_threads(before)
    assert spoiled[:, :13].isnan().all()
    assert torch.equal(spoiled[:, 13:], clean[:, 13:])


def test_without_a_compiler_pytorch_computes(monkeypatch):
    monkeypatch.setattr(native, "_library", lambda: None)
    assert choose_kernel("auto", torch.device("cpu"), torch.float32) == "sdpa"


@pytest.mark.parametrize(
    ("wanted", "device", "dtype", "chosen"),
    [
        ("auto", "cpu", torch.bfloat16, "sdpa"),
        ("flash_attention_2", "cpu", torch.float32, "native"),
        ("varlen", "cpu", torch.bfloat16, "sdpa"),
        ("eager", "cpu", torch.float32, "eager"),
        ("auto", "cuda", torch.float32, "sdpa"),
    ],
)
def test_a_kernel_that_cannot_run_is_replaced_with_a_log_line(caplog, wanted, device, dtype, chosen):
    assert choose_kernel(wanted, torch.device(device), dtype) == chosen
    assert bool(caplog.records) == (wanted not in ("auto", chosen))


def test_add_layer_norm_is_what_pytorch_computes():
    norm = torch.nn.LayerNorm(96)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x, residual = torch.randn(2, 7, 96) * 5 + 100, torch.randn(2, 7, 96)
    with torch.inference_mode():
        expected = norm(x + residual)
        torch.testing.assert_close(native.add_layer_norm(x.clone(), residual, norm), expected, atol=2e-5, rtol=1e-5)
