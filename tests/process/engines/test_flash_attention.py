"""FlashAttention is called with its own contract: there is no GPU here, so fakes compute what its entry points do."""

import sys
import types

import pytest
import torch

from sie_triton.engines.torch.attention import kernels
from sie_triton.engines.torch.attention.kernels import KERNELS, choose_kernel, eager_attention, reason_unusable
from sie_triton.engines.torch.attention.segments import Segments
from tests.support.attention import LENGTHS, WINDOWS, formula, tensors

CUDA = torch.device("cuda")

# Query heads, key heads, width: as of BERT, SigLIP, Qwen3 and Gemma.
HEADS = [(12, 12, 64), (16, 16, 72), (8, 2, 128), (4, 1, 256)]
ITEMS = (1, 5, 1, 33, 33, 40)
KEYS = (1, 3, 1, 33, 20, 40)


@pytest.fixture
def is_there(monkeypatch):
    """Pretend a PyTorch for CUDA, on a current GPU."""
    monkeypatch.setattr(kernels, "pytorch_lacks", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))


@pytest.fixture
def calls(monkeypatch, is_there):
    """The arguments of each call of PyTorch's operator, which `flash_forward` below computes."""
    made = []
    names = [argument.name for argument in kernels.flash_forward._schema.arguments]

    def called(*args, **kwargs):
        assert not set(names[: len(args)]) & kwargs.keys()
        made.append(dict(zip(names, args, strict=False)) | kwargs)
        return flash_forward(**made[-1]), None, None, None, None

    monkeypatch.setattr(kernels, "flash_forward", called)
    return made


def flash_forward(
    query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask,
    *, scale, window_size_left, window_size_right, seqused_k,
):  # fmt: skip
    """Compute what PyTorch's mha_varlen_fwd does, with its checks of arguments, and with the masks of FlashAttention's
    BlockInfo and Mask.
    """
    width = query.shape[-1]
    assert width % 8 == 0
    assert width <= 256
    assert all(x.stride(-1) == 1 and x.shape[-1] == width for x in (query, key, value))
    assert query.shape[1] % key.shape[1] == 0
    assert (dropout_p, is_causal, return_debug_mask) == (0.0, False, False)
    counts = cum_seq_k.diff() if seqused_k is None else seqused_k
    assert {x.dtype for x in (cum_seq_q, cum_seq_k, counts)} == {torch.int32}
    assert (max_q, max_k) == (cum_seq_q.diff().max(), cum_seq_k.diff().max())
    assert counts.shape == (len(cum_seq_q) - 1,)
    group = query.shape[1] // key.shape[1]
    done = []
    for item, count in enumerate(counts.tolist()):
        q = query[cum_seq_q[item] : cum_seq_q[item + 1]].transpose(0, 1)
        first = int(cum_seq_k[item])
        k, v = (x[first : first + count].transpose(0, 1).repeat_interleave(group, 0) for x in (key, value))
        # Row and column, aligned with the last of the keys that are used.
        ahead = torch.arange(count) - torch.arange(q.shape[1])[:, None] - (count - q.shape[1])
        hidden = (window_size_left >= 0) & (ahead < -window_size_left)
        hidden |= (window_size_right >= 0) & (ahead > window_size_right)
        scores = (q @ k.mT * scale).masked_fill(hidden, -torch.inf)
        done.append((scores.softmax(-1) @ v).transpose(0, 1))
    return torch.cat(done)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
def test_the_operator_computes_what_eager_attention_does(calls, heads, kv_heads, width, window):
    given, segments = tensors(heads, kv_heads, width, sum(LENGTHS)), Segments.of(LENGTHS)
    ours = KERNELS["varlen"](*given, segments, 0.2, window)
    assert calls[0]["seqused_k"] is None
    assert len(calls) == 1
    torch.testing.assert_close(ours, eager_attention(*given, segments, 0.2, window), atol=2e-5, rtol=0)


@pytest.mark.parametrize("window", [(-1, -1), (32, 32), (-1, 32), (100, 40)], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
@pytest.mark.parametrize("name", ["flash_attention_2", "varlen"])
def test_items_with_fewer_keys_than_tokens_take_one_call(calls, name, heads, kv_heads, width, window):
    """ColBERT's queries are such items. The longest has 33 tokens, and the window covers it."""
    given, segments = tensors(heads, kv_heads, width, sum(ITEMS)), Segments.of(ITEMS, KEYS)
    ours = KERNELS[name](*given, segments, 0.2, window)
    assert [call["seqused_k"].tolist() for call in calls] == [list(KEYS)]
    torch.testing.assert_close(ours, eager_attention(*given, segments, 0.2, window), atol=2e-5, rtol=0)


@pytest.mark.parametrize("window", [(-1, 0), (31, 31), (32, 31), (31, -1)], ids=str)
def test_windowed_items_with_fewer_keys_fall_back_to_sdpa(calls, monkeypatch, window):
    """FlashAttention would align it with the last key: the same call then computes something else."""
    given, segments = tensors(4, 2, 64, sum(ITEMS)), Segments.of(ITEMS, KEYS)
    expected = eager_attention(*given, segments, 0.2, window)
    torch.testing.assert_close(KERNELS["varlen"](*given, segments, 0.2, window), expected, atol=2e-5, rtol=0)
    assert not calls
    monkeypatch.setattr(Segments, "takes_aligned_to_keys", lambda *_: True)
    assert (KERNELS["varlen"](*given, segments, 0.2, window) - expected).abs().nan_to_num(9).max() > 1e-3


@pytest.mark.parametrize("width", [20, 264])
@pytest.mark.parametrize("name", ["flash_attention_2", "varlen"])
def test_heads_that_it_does_not_take_are_left_to_sdpa(calls, name, width):
    given, segments = tensors(2, 1, width, sum(ITEMS)), Segments.of(ITEMS)
    ours = KERNELS[name](*given, segments, 0.1, (3, 0))
    torch.testing.assert_close(ours, eager_attention(*given, segments, 0.1, (3, 0)), atol=2e-5, rtol=0)
    assert not calls


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads", "width"), HEADS)
@pytest.mark.parametrize("keys", [ITEMS, KEYS], ids=["all keys", "partial keys"])
def test_this_pytorchs_operator_takes_the_arguments(is_there, heads, kv_heads, width, dtype, keys):
    """The arguments fit its schema, and the function that knows the shapes of its results."""
    sizes = [(1, sum(ITEMS), n * width) for n in (heads, kv_heads, kv_heads)]
    rows = [torch.empty(size, dtype=dtype, device="meta") for size in sizes]
    given = [x.view(1, sum(ITEMS), -1, width).transpose(1, 2) for x in rows]
    out = KERNELS["varlen"](*given, Segments.of(ITEMS, keys), 0.2, (-1, -1))
    assert out.shape == (1, sum(ITEMS), heads, width)
    assert (out.dtype, out.device.type) == (dtype, "meta")


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_package_is_called_as_it_asks(monkeypatch, window):
    """The package's function of 2.8 takes no number of keys."""

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *, softmax_scale, window_size
    ):
        bounds = cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
        left, right = window_size
        of_window = {"window_size_left": left, "window_size_right": right}
        return flash_forward(q, k, v, *bounds, 0.0, False, False, scale=softmax_scale, **of_window, seqused_k=None)

    fake = types.SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)
    monkeypatch.setitem(sys.modules, "flash_attn", fake)
    given, lengths = tensors(4, 2, 16, 40), (13, 27)
    ours = KERNELS["flash_attention_2"](*given, Segments.of(lengths), 0.25, window)
    torch.testing.assert_close(ours.double(), formula(*given, lengths, 0.25, window), atol=1e-5, rtol=0)


WORKS = "def flash_attn_varlen_func(): ..."


@pytest.mark.parametrize(
    ("files", "chosen", "reason"),
    [
        ({"__init__.py": WORKS}, "flash_attention_2", None),
        ({}, "varlen", "flash_attn is not installed"),
        ({"__init__.py": "raise ImportError('undefined symbol: _ZN3c10')"}, "varlen", "undefined symbol"),
        ({"__init__.py": "raise OSError('libcudart.so.12: cannot open')"}, "varlen", "libcudart.so.12"),
        ({"__init__.py": "import flash_attn_2_cuda"}, "varlen", "No module named 'flash_attn_2_cuda'"),
        ({"cute/__init__.py": WORKS}, "varlen", "cannot import name 'flash_attn_varlen_func'"),
    ],
    ids=["works", "not there", "of another PyTorch", "of another CUDA", "without its library", "version 4"],
)
def test_a_package_that_cannot_be_imported_is_not_chosen(
    tmp_path, monkeypatch, caplog, is_there, files, chosen, reason
):
    for name, text in files.items():
        path = tmp_path / "flash_attn" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "flash_attn"]:
        monkeypatch.delitem(sys.modules, name)
    assert choose_kernel("auto", CUDA, torch.float16) == chosen
    assert bool(caplog.records) == bool(files and reason)
    lacking = reason_unusable("flash_attention_2", CUDA, torch.float16)
    assert lacking is None if reason is None else reason in lacking
    sys.modules.pop("flash_attn", None)


def test_without_flash_attention_sdpa_computes(monkeypatch, is_there):
    monkeypatch.setattr(kernels, "pytorch_lacks", lambda: "it was built without")
    assert choose_kernel("auto", CUDA, torch.float16) == "sdpa"


def test_an_older_gpu_has_sdpa(monkeypatch, is_there):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    assert choose_kernel("auto", CUDA, torch.float16) == "sdpa"


def test_an_operator_of_other_arguments_is_not_called(monkeypatch):
    """The operator is private, and may change."""
    arguments = [types.SimpleNamespace(name=name) for name in ("query", "scale", "window_size_left", "seqused_k")]
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    uncached = kernels.pytorch_lacks.__wrapped__
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert uncached() == "there is no GPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert uncached() is None
    other = types.SimpleNamespace(_schema=types.SimpleNamespace(arguments=arguments))
    monkeypatch.setattr(kernels, "flash_forward", other)
    assert uncached() == "this PyTorch's FlashAttention takes no window_size_right"
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    assert uncached() == "this PyTorch was built without FlashAttention"


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["flash_attention_2", "varlen", "sdpa"])
@pytest.mark.parametrize("keys", [LENGTHS, tuple(max(1, n - 3) for n in LENGTHS)], ids=["all keys", "partial keys"])
def test_a_kernel_computes_the_formula_on_a_gpu(name, dtype, window, keys):
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    if lacking := reason_unusable(name, CUDA, dtype):
        pytest.skip(f"{name}: {lacking}")
    if keys != LENGTHS and window in ((10, 10), (0, 0)):
        pytest.skip("a token would see nothing")
    query, key, value = (x.to("cuda", dtype) for x in tensors(8, 2, 64, sum(LENGTHS)))
    ours = KERNELS[name](query, key, value, Segments.of(LENGTHS, keys), 0.125, window)
    expected = formula(query, key, value, LENGTHS, 0.125, window, keys)
    torch.testing.assert_close(ours.double(), expected, atol=2e-2, rtol=2e-2)
