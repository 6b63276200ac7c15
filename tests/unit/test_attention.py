"""The kernels against the formula in float64, with every window, grouped heads and awkward lengths."""

import inspect
import sys
import types

import pytest
import torch
from torch.nn.attention import varlen

from sie_triton.engines.torch import cpu_kernels as native
from sie_triton.engines.torch.attention import attending, kernels
from sie_triton.engines.torch.attention.kernels import KERNELS, choose_kernel, visible, why_not
from sie_triton.engines.torch.attention.packed import packed_attention
from sie_triton.engines.torch.attention.segments import Segments

HERE = ("native", "sdpa", "eager")
LENGTHS = (1, 2, 5, 16, 17, 42, 63, 64, 65, 130, 130, 300)
WINDOWS = ((-1, -1), (-1, 0), (10, 10), (30, 0), (0, 0))

HEADS = [(12, 12, 32), (8, 2, 64), (4, 1, 128), (2, 2, 80), (3, 3, 20)]


def formula(query, key, value, lengths, scaling, window, keys=None):
    """Of each item the first `keys` tokens are looked at; None: all."""
    group = query.shape[1] // key.shape[1]
    items = zip(
        *(torch.split(x[0].double(), lengths, dim=1) for x in (query, key, value)), keys or lengths, strict=True
    )
    results = []
    for q, k, v, num_keys in items:
        scores = q @ k.repeat_interleave(group, 0).transpose(1, 2) * scaling
        scores = scores.masked_fill(~visible(q.shape[1], window, q.device), -torch.inf)
        scores[:, :, num_keys:] = -torch.inf
        results.append((scores.softmax(-1) @ v.repeat_interleave(group, 0)).transpose(0, 1))
    return torch.cat(results)[None]


def tensors(heads, kv_heads, width, tokens, seed=0):
    """query, key and value as an attention layer makes them."""
    torch.manual_seed(seed)
    return [
        torch.randn(1, tokens, n * width).view(1, tokens, n, width).transpose(1, 2) for n in (heads, kv_heads, kv_heads)
    ]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
@pytest.mark.parametrize("name", HERE)
def test_a_kernel_computes_the_formula(name, heads, kv_heads, width, window):
    query, key, value = tensors(heads, kv_heads, width, sum(LENGTHS))
    arguments = (3 * query, key, value), width**-0.5, window
    ours = KERNELS[name](*arguments[0], Segments.of(LENGTHS), *arguments[1:])
    torch.testing.assert_close(ours.double(), formula(*arguments[0], LENGTHS, *arguments[1:]), atol=2e-5, rtol=0)


# Neighbours of one length that differ in their keys; each item has at least one key in every window used with it.
WITH_KEYS = (5, 5, 5, 17, 17, 40), (5, 3, 3, 16, 9, 33)


@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (30, 10)], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
@pytest.mark.parametrize("name", KERNELS)
def test_what_is_no_key_is_not_looked_at(name, heads, kv_heads, width, window):
    """The kernels for GPUs know no keys and leave such items to PyTorch's."""
    lengths, keys = WITH_KEYS
    query, key, value = tensors(heads, kv_heads, width, sum(lengths))
    ours = KERNELS[name](query, key, value, Segments.of(lengths, keys), 0.3, window)
    expected = formula(query, key, value, lengths, 0.3, window, keys)
    torch.testing.assert_close(ours.double(), expected, atol=2e-5, rtol=0)


def test_neighbours_are_one_run_where_lengths_and_keys_agree():
    lengths, keys = WITH_KEYS
    assert Segments.of(lengths, keys).runs == ((1, 5, 5), (2, 5, 3), (1, 17, 16), (1, 17, 9), (1, 40, 33))
    assert not Segments.of(lengths, keys).all_are_keys
    assert Segments.of(lengths).all_are_keys
    assert Segments.of(lengths, lengths) == Segments.of(lengths)


@pytest.mark.parametrize(("scaling", "used"), [(None, 64**-0.5), (0.3, 0.3)])
def test_without_a_scaling_it_is_that_of_the_width(scaling, used):
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
def test_a_kernel_that_cannot_run_is_replaced_and_the_log_says_so(caplog, wanted, device, dtype, chosen):
    assert choose_kernel(wanted, torch.device(device), dtype) == chosen
    assert bool(caplog.records) == (wanted not in ("auto", chosen))


@pytest.mark.parametrize(
    ("capability", "installed", "chosen"),
    [
        ((9, 0), ("flash_attn",), "flash_attention_2"),
        ((9, 0), (), "varlen"),
        ((7, 5), ("flash_attn",), "sdpa"),
    ],
)
def test_the_choice_on_a_gpu(monkeypatch, capability, installed, chosen):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    here = ("torch.nn.attention.varlen", *installed)
    monkeypatch.setattr(kernels, "find_spec", lambda name: name if name in here else None)
    assert choose_kernel("auto", torch.device("cuda"), torch.float16) == chosen


def test_a_varlen_kernel_of_an_older_pytorch_is_left(monkeypatch):
    """Its first releases have neither windows nor grouped heads."""

    def varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False): ...

    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    cuda = torch.device("cuda")
    assert choose_kernel("auto", cuda, torch.float16) in ("sdpa", "flash_attention_2")
    assert why_not("varlen", cuda, torch.float16) == "this PyTorch's takes no enable_gqa, window_size"


def by_formula(query, key, value, offsets, max_length, scale, window):
    """As the GPU kernels lay things out: [tokens, heads, d] and int32 offsets [items + 1]."""
    assert offsets.dtype == torch.int32
    lengths = offsets.diff().tolist()
    assert max_length == max(lengths)
    rows = (x.transpose(0, 1)[None] for x in (query, key, value))
    return formula(*rows, lengths, scale, window)[0].float()


def flash_attn_varlen_func(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, softmax_scale, window_size
):
    assert torch.equal(cu_seqlens_q, cu_seqlens_k)
    return by_formula(q, k, v, cu_seqlens_q, max_seqlen_k, softmax_scale, window_size)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("name", ["flash_attention_2", "varlen"])
def test_the_gpu_kernels_are_called_as_they_ask(monkeypatch, name, window):
    """No GPU here: their entry points are replaced by the formula, behind their own signatures."""
    real = inspect.signature(varlen.varlen_attn)

    def varlen_attn(*args, **kwargs):
        given = real.bind(*args, **kwargs).arguments
        assert given["enable_gqa"]
        q, k, v = given["query"], given["key"], given["value"]
        return by_formula(q, k, v, given["cu_seq_q"], given["max_k"], given["scale"], given["window_size"])

    monkeypatch.setattr(varlen, "varlen_attn", varlen_attn)
    fake = types.SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)
    monkeypatch.setitem(sys.modules, "flash_attn", fake)
    query, key, value = torch.randn(1, 4, 40, 16), torch.randn(1, 2, 40, 16), torch.randn(1, 2, 40, 16)
    ours = KERNELS[name](query, key, value, Segments.of((13, 27)), 0.25, window)
    torch.testing.assert_close(ours.double(), formula(query, key, value, (13, 27), 0.25, window), atol=1e-5, rtol=0)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["flash_attention_2", "varlen", "sdpa"])
def test_a_kernel_computes_the_formula_on_a_gpu(name, dtype, window):
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    if lacking := why_not(name, torch.device("cuda"), dtype):
        pytest.skip(f"{name}: {lacking}")
    query, key, value = (x.to("cuda", dtype) for x in tensors(8, 2, 64, sum(LENGTHS)))
    ours = KERNELS[name](query, key, value, Segments.of(LENGTHS), 0.125, window)
    expected = formula(query, key, value, LENGTHS, 0.125, window)
    torch.testing.assert_close(ours.double(), expected, atol=2e-2, rtol=2e-2)


def test_add_layer_norm_is_what_pytorch_computes():
    norm = torch.nn.LayerNorm(96)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    x, residual = torch.randn(2, 7, 96) * 5 + 100, torch.randn(2, 7, 96)
    with torch.inference_mode():
        expected = norm(x + residual)
        torch.testing.assert_close(native.add_layer_norm(x.clone(), residual, norm), expected, atol=2e-5, rtol=1e-5)
