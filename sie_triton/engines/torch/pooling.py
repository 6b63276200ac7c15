"""Pooling: token states of packed items → one vector per item, by sentence-transformers' modes."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.contract import Spans
from sie_triton.contract.arrays import Ints
from sie_triton.engines.torch.rows import placed
from sie_triton.engines.torch.transfers import Indices

# Modes that select a single token's state.
ENDS = ("cls", "lasttoken")


class Pooling:
    """Pools states of items with `of_items` tokens: float [tokens, d] → [items, d · len(modes)].

    The first `of_prompts` tokens of an item are excluded, except in lasttoken. An item with `spans` becomes a row for
    each of them, by its own tokens; only with the mode mean. `indices`: arrays that pooling reads on the device; the
    preceding forward pass can upload them.
    """

    def __init__(self, of_items: Ints, of_prompts: Ints, modes: tuple[str, ...], spans: Sequence[Spans] = ()) -> None:
        self._modes = modes
        self._is_one = len(of_items) == 1 and not of_prompts.any() and not spans
        skip = np.where(of_prompts < of_items, of_prompts, 0)
        self._gathers = bool(skip.any()) or bool(spans)
        if self._is_one:
            self.indices = Indices()
        elif spans:
            self.indices = Indices(*_arrays_of_spans(of_items, skip, spans))
        else:
            self.indices = Indices(*_arrays(of_items, skip, modes))

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        if self._is_one:
            pooled = [_of_one(hidden, mode) for mode in self._modes]
        else:
            firsts, lasts, lengths, kept, places = self.indices.on(hidden.device)
            pooled = []
            for mode in self._modes:
                if mode in ENDS:
                    pooled.append(hidden[firsts if mode == "cls" else lasts])
                else:
                    inside = hidden[kept] if self._gathers else hidden
                    pooled.append(_reduce(inside, lengths, places, mode))
        return torch.cat(pooled, dim=-1) if len(pooled) > 1 else pooled[0]


def _arrays(of_items: Ints, skip: Ints, modes: tuple[str, ...]) -> list[npt.NDArray[np.int64]]:
    """Return int64 arrays: first pooled token, last token and number of pooled tokens of each item; indices of the
    pooled tokens, and their positions in the item. Arrays that no mode needs are empty.
    """
    ends = np.cumsum(of_items, dtype=np.int64)
    reduces = any(mode not in ENDS for mode in modes)
    kept = places = np.empty(0, np.int64)
    if reduces and (skip.any() or "weightedmean" in modes):
        _, places = placed(of_items)
        kept = np.flatnonzero(places >= np.repeat(skip, of_items))
        places = places[kept]
    return [ends - of_items + skip, ends - 1, (of_items - skip).astype(np.int64), kept, places]


def _arrays_of_spans(of_items: Ints, skip: Ints, spans: Sequence[Spans]) -> list[npt.NDArray[np.int64]]:
    """Return arrays as `_arrays` does, with a row for each span; the first span of an item begins after `skip`."""
    rows = []
    for start, length, skipped, own in zip(np.cumsum(of_items) - of_items, of_items, skip, spans, strict=True):
        for first, last in own or [(0, length)]:
            rows.append((start + (skipped if first < skipped < last else first), start + last))
    firsts, ends = np.array(rows, np.int64).T
    lengths = ends - firsts
    _, places = placed(lengths)
    return [firsts, ends - 1, lengths, np.repeat(firsts, lengths) + places, places]


def _of_one(hidden: torch.Tensor, mode: str) -> torch.Tensor:
    """Pool a single item without excluded tokens, in a fifth of the general time."""
    if mode == "cls":
        return hidden[:1]
    if mode == "lasttoken":
        return hidden[-1:]
    if mode == "max":
        return hidden.amax(0, keepdim=True)
    states, num_tokens = hidden.float(), len(hidden)
    if mode == "weightedmean":
        weights = torch.arange(1, num_tokens + 1, device=hidden.device).float()[:, None]
        return (states * weights).sum(0, keepdim=True) / weights.sum()
    return states.sum(0, keepdim=True) / (num_tokens**0.5 if mode == "mean_sqrt_len_tokens" else num_tokens)


def _reduce(hidden: torch.Tensor, lengths: torch.Tensor, places: torch.Tensor, mode: str) -> torch.Tensor:
    if mode == "max":
        return segments(hidden, "max", lengths)
    if mode == "weightedmean":
        weights = (places + 1).to(torch.float32)[:, None]
        return segments(hidden.float() * weights, "sum", lengths) / segments(weights, "sum", lengths)
    total = segments(hidden.float(), "sum", lengths)
    divisor = lengths[:, None].float()
    return total / (divisor.sqrt() if mode == "mean_sqrt_len_tokens" else divisor)


def segments(rows: torch.Tensor, reduce: str, lengths: torch.Tensor) -> torch.Tensor:
    """Reduce each segment to one row. `lengths` must sum to len(rows): PyTorch's own check would wait for a GPU."""
    return torch.segment_reduce(rows, reduce, lengths=lengths, axis=0, unsafe=True)
