"""Transfers to and from the device of a pass: one copy each way, of which the CPU waits only for the last.

A copy from pageable memory to a GPU waits until all work launched before it is done; a copy from page-locked memory
does not (`at::cuda::memcpy_and_sync` in PyTorch's Copy.cu). PyTorch caches page-locked memory for the next pass.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch

from sie_triton.contract.arrays import Array

# Alignment of each array in the copy, in bytes; enough for every type.
ALIGNMENT = 8


class Indices:
    """Integer arrays that a pass reads on its device, copied together by `upload`, else at their first use."""

    def __init__(self, *arrays: Array) -> None:
        self.arrays = arrays
        self._tensors: list[torch.Tensor] = []

    def on(self, device: torch.device) -> list[torch.Tensor]:
        """Return the arrays as tensors of the same types on `device`."""
        if self.arrays and not (self._tensors and self._tensors[0].device == device):
            self._tensors = copied(self.arrays, device)
        return self._tensors

    @staticmethod
    def upload(all_of_them: Sequence["Indices"], device: torch.device) -> None:
        """Copy all arrays of a pass to a GPU at once; do nothing on a CPU."""
        if device.type == "cuda":
            tensors = copied([array for each in all_of_them for array in each.arrays], device)
            for each in all_of_them:
                each._tensors, tensors = tensors[: len(each.arrays)], tensors[len(each.arrays) :]


def copied(arrays: Sequence[Array], device: torch.device) -> list[torch.Tensor]:
    """Copy arrays to `device`. On a CPU the tensors share the arrays' memory."""
    if device.type != "cuda":
        return [torch.from_numpy(array).to(device) for array in arrays]
    starts = list(accumulate((-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays), initial=0))
    here = torch.empty(starts[-1], dtype=torch.uint8, pin_memory=True)
    given = here.numpy()
    for array, start in zip(arrays, starts, strict=False):
        given[start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    there = here.to(device, non_blocking=True)
    places = zip(arrays, pairwise(starts), strict=True)
    return [there[start : start + array.nbytes].view(_type_of(array)).view(array.shape) for array, (start, _) in places]


def _type_of(array: Array) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype


def downloaded(*tensors: torch.Tensor) -> list[Array]:
    """Copy the tensors of a pass to the CPU at once; their elements have 4 bytes."""
    if tensors[0].device.type == "cpu":
        return [tensor.numpy() for tensor in tensors]
    words = torch.cat([tensor.contiguous().view(torch.int32).flatten() for tensor in tensors]).cpu().numpy()
    ends = np.cumsum([tensor.numel() for tensor in tensors])[:-1]
    parts = zip(np.split(words, ends), tensors, strict=True)
    return [part.view(_NUMBERS[tensor.dtype]).reshape(tensor.shape) for part, tensor in parts]


_NUMBERS = {torch.float32: np.float32, torch.int32: np.int32}
