"""Token vectors of packed items → one vector per item, by sentence-transformers' pooling modes."""

import numpy as np
import numpy.typing as npt
import torch

Ints = npt.NDArray[np.int32]


def pool(hidden: torch.Tensor, of_items: Ints, of_prompts: Ints, modes: tuple[str, ...]) -> torch.Tensor:
    """The states of items, float [tokens, d], `of_items` tokens each → [items, d · len(modes)].

    The first `of_prompts` tokens of an item take no part, except in lasttoken.
    """
    lengths, prompt_tokens = (
        torch.from_numpy(counts.astype(np.int64)).to(hidden.device) for counts in (of_items, of_prompts)
    )
    ends = lengths.cumsum(0)
    starts = ends - lengths
    skip = torch.where(prompt_tokens < lengths, prompt_tokens, torch.zeros_like(prompt_tokens))
    pooled = []
    for mode in modes:
        if mode == "cls":
            pooled.append(hidden[starts + skip])
        elif mode == "lasttoken":
            pooled.append(hidden[ends - 1])
        elif bool(skip.any()):
            position = torch.arange(len(hidden), device=hidden.device) - starts.repeat_interleave(lengths)
            kept = position >= skip.repeat_interleave(lengths)
            pooled.append(_reduce(hidden[kept], lengths - skip, position[kept], mode))
        else:
            pooled.append(_reduce(hidden, lengths, None, mode))
    return torch.cat(pooled, dim=-1) if len(pooled) > 1 else pooled[0]


def _reduce(hidden: torch.Tensor, lengths: torch.Tensor, position: torch.Tensor | None, mode: str) -> torch.Tensor:
    if mode == "max":
        return torch.segment_reduce(hidden, "max", lengths=lengths, axis=0)
    if mode == "weightedmean":
        if position is None:
            position = torch.cat([torch.arange(int(n), device=hidden.device) for n in lengths])
        weights = (position + 1).to(torch.float32)[:, None]
        total = torch.segment_reduce(hidden.float() * weights, "sum", lengths=lengths, axis=0)
        return total / torch.segment_reduce(weights, "sum", lengths=lengths, axis=0)
    total = torch.segment_reduce(hidden.float(), "sum", lengths=lengths, axis=0)
    divisor = lengths[:, None].float()
    return total / (divisor.sqrt() if mode == "mean_sqrt_len_tokens" else divisor)
