"""Kernels for packed attention, and the choice of the fastest for the hardware.

Each kernel takes query [1, heads, tokens, d] and key, value [1, kv_heads, tokens, d] of packed items and returns
[1, tokens, heads, d]. Query heads share key heads in equal groups. A query without keys in its window gets 0.
"""

import logging
from collections.abc import Callable
from functools import cache, partial

import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from sie_triton.checkpoints.files import first_line
from sie_triton.contract.spec import AUTO
from sie_triton.engines.torch import cpu_kernels as native
from sie_triton.engines.torch.attention.segments import CAUSAL, EVERYTHING, Segments, Window

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Segments, float, Window], torch.Tensor]

# Queries that share a mask in PyTorch's kernel.
BLOCK = 1024

ALL = slice(None)


# PyTorch's copy of FlashAttention 2. The operator is private: `pytorch_lacks` looks at its arguments.
flash_forward = torch.ops.aten._flash_attention_forward.default

_log = logging.getLogger(__name__)


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float, window: Window
) -> torch.Tensor:
    """The flash-attn package's kernel for items of varying length; it does not support partial keys."""
    if not segments.all_are_keys or not fits_flash(query, value):
        return varlen_attention(query, key, value, segments, scaling, window)
    from flash_attn import flash_attn_varlen_func

    offsets, longest = segments.offsets(query.device), segments.longest
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    out: torch.Tensor = flash_attn_varlen_func(
        q, k, v, offsets, offsets, longest, longest, softmax_scale=scaling, window_size=window
    )
    return out[None]


def varlen_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float, window: Window
) -> torch.Tensor:
    """PyTorch's own FlashAttention for items of varying length.

    Like the flash-attn package, it aligns a window with the last key of an item, not with its last token.
    """
    if pytorch_lacks() or not fits_flash(query, value) or not segments.takes_aligned_to_keys(window):
        return sdpa_attention(query, key, value, segments, scaling, window)
    offsets, longest, (left, right) = segments.offsets(query.device), segments.longest, window
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    dropout, is_causal, returns_mask = 0.0, False, False
    out: torch.Tensor = flash_forward(
        *(q, k, v, offsets, offsets, longest, longest, dropout, is_causal, returns_mask),
        scale=scaling,
        window_size_left=left,
        window_size_right=right,
        seqused_k=None if segments.all_are_keys else segments.num_keys(query.device),
    )[0]
    return out[None]


def sdpa_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float, window: Window
) -> torch.Tensor:
    """PyTorch's fused kernel, a call for each run of items of equal length.

    Windows have a mask for at most BLOCK queries and the keys that these see, so that memory grows with the length of
    an item, not with its square.
    """
    attend = partial(sdpa, scale=scaling, enable_gqa=query.shape[1] != key.shape[1])

    def attend_items(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        num_queries, num_keys = query.shape[2], key.shape[2]
        if window == EVERYTHING:
            return attend(query, key, value)
        if window == CAUSAL and num_queries == num_keys:
            return attend(query, key, value, is_causal=True)
        blocks = []
        for start in range(0, num_queries, BLOCK):
            queries = slice(start, min(start + BLOCK, num_queries))
            keys = _seen(queries, num_keys, window)
            mask = visible(num_queries, window, query.device, queries, keys)
            blocks.append(attend(query[:, :, queries], key[:, :, keys], value[:, :, keys], attn_mask=mask))
        return blocks[0] if len(blocks) == 1 else torch.cat(blocks, dim=2)

    return _by_run(attend_items, query, key, value, segments)


def _seen(queries: slice, num_keys: int, window: Window) -> slice:
    """Return the keys that at least one of the queries sees; at least one key."""
    left, right = window
    first = max(0, queries.start - left) if left >= 0 else 0
    last = min(num_keys, queries.stop + right) if right >= 0 else num_keys
    return slice(min(first, num_keys - 1), max(last, 1))


def eager_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float, window: Window
) -> torch.Tensor:
    """Plain implementation of the formula; softmax in float32."""
    group = query.shape[1] // key.shape[1]

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = torch.matmul(query, key.transpose(2, 3)) * scaling
        if window == EVERYTHING:
            return torch.matmul(scores.softmax(-1, dtype=torch.float32).to(value.dtype), value)
        hidden = ~visible(query.shape[2], window, query.device)[:, : key.shape[2]]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1, dtype=torch.float32).masked_fill(hidden, 0)
        return torch.matmul(weights.to(value.dtype), value)

    return _by_run(attend, query, key, value, segments)


def native_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, segments: Segments, scaling: float, window: Window
) -> torch.Tensor:
    """Our CPU kernel; PyTorch's SDPA for head sizes that it does not support."""
    if not native.takes(query):
        return sdpa_attention(query, key, value, segments, scaling, window)
    return native.attention(query, key, value, segments.lengths, segments.keys, scaling, window)


KERNELS: dict[str, Kernel] = {
    "flash_attention_2": flash_attention,
    "varlen": varlen_attention,
    "native": native_attention,
    "sdpa": sdpa_attention,
    "eager": eager_attention,
}

# Fastest first; the last two run anywhere.
PREFERENCE = ("flash_attention_2", "varlen", "native", "sdpa")


def choose_kernel(wanted: str, device: torch.device, dtype: torch.dtype) -> str:
    """Return `wanted`; if it is "auto" or cannot run here, return the fastest kernel that can."""
    wanted = possible(wanted, device, dtype)
    return wanted if wanted != AUTO else next(n for n in PREFERENCE if reason_unusable(n, device, dtype) is None)


def possible(wanted: str, device: torch.device, dtype: torch.dtype) -> str:
    """Return `wanted`, or "auto" if it cannot run here; the log then says why."""
    lacking = None if wanted == AUTO else reason_unusable(wanted, device, dtype)
    if lacking is not None:
        _log.warning("attention backend %s cannot run: %s; using auto", wanted, lacking)
    return wanted if lacking is None else AUTO


def reason_unusable(name: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """Return why kernel `name` cannot run on `device` with `dtype`; None if it can."""
    if name in ("sdpa", "eager"):
        return None
    if name == "native":
        if device.type != "cpu" or dtype != torch.float32:
            return "it computes float32 on a CPU only"
        return None if native.is_built() else "the wheel has none for this processor, and no C compiler was found"
    if device.type != "cuda" or dtype not in (torch.float16, torch.bfloat16):
        return "it needs a GPU and float16 or bfloat16"
    if torch.cuda.get_device_capability(device) < (8, 0):  # before Ampere
        return "it needs compute capability 8.0 or newer"
    return pytorch_lacks() if name == "varlen" else flash_attn_lacks()


def fits_flash(query: torch.Tensor, value: torch.Tensor) -> bool:
    """True if FlashAttention 2 supports this head size: it does multiples of 8, up to 256."""
    width = query.shape[-1]
    return width <= 256 and width % 8 == 0 and value.shape[-1] == width


@cache
def pytorch_lacks() -> str | None:
    """Return why PyTorch's own FlashAttention cannot run here; None if it can."""
    if not torch.cuda.is_available():
        return "there is no GPU"
    if not torch.backends.cuda.is_flash_attention_available():
        return "this PyTorch was built without FlashAttention"
    needed = {"scale", "window_size_left", "window_size_right", "seqused_k"}
    lacking = needed - {argument.name for argument in flash_forward._schema.arguments}
    return f"this PyTorch's FlashAttention takes no {', '.join(sorted(lacking))}" if lacking else None


def flash_attn_lacks() -> str | None:
    """Return why the flash-attn package cannot be used; None if it can.

    A package built for another PyTorch is installed but fails to import; version 4 has a different function.
    """
    try:
        from flash_attn import flash_attn_varlen_func  # noqa: F401
    except (ImportError, OSError) as exc:
        if isinstance(exc, ModuleNotFoundError) and exc.name == "flash_attn":
            return "flash_attn is not installed"
        reason = f"flash_attn is installed, and cannot be imported: {first_line(exc)}"
        _log.warning(reason)
        return reason
    return None


def visible(length: int, window: Window, device: torch.device, queries: slice = ALL, keys: slice = ALL) -> torch.Tensor:
    """Return bool [queries, keys] of an item of `length` tokens: True where a query (row) sees a key (column).

    >>> visible(3, (1, 0), torch.device("cpu")).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    index = torch.arange(length, device=device, dtype=torch.int32)
    ahead = index[None, keys] - index[queries, None]
    left, right = window
    seen = torch.ones_like(ahead, dtype=torch.bool)
    if left >= 0:
        seen &= ahead >= -left
    if right >= 0:
        seen &= ahead <= right
    return seen


def _by_run(
    attend: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
) -> torch.Tensor:
    tokens = [count * length for count, length, _ in segments.runs]
    pieces = zip(*(torch.split(x, tokens, dim=2) for x in (query, key, value)), segments.runs, strict=True)
    attended = []
    for q, k, v, (count, length, keys) in pieces:
        stacked = (_stack(x, count, length) for x in (q, k, v))
        queries, *others = stacked
        key_run, value_run = (x[:, :, :keys] for x in others)
        attended.append(_unstack(attend(queries, key_run, value_run)))
    return torch.cat(attended, dim=1) if len(attended) > 1 else attended[0]


def _stack(x: torch.Tensor, count: int, length: int) -> torch.Tensor:
    """[1, heads, count · length, d] → [count, heads, length, d], without a copy."""
    return x if count == 1 else x[0].view(x.shape[1], count, length, x.shape[3]).transpose(0, 1)


def _unstack(x: torch.Tensor) -> torch.Tensor:
    """[count, heads, length, d] → [1, count · length, heads, d]."""
    return x.transpose(1, 2).flatten(0, 1)[None]
