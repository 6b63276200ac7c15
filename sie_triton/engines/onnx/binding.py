"""Passes of ONNX Runtime from torch tensors to a torch tensor, on the session's device."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

# Element types of outputs that torch and NumPy share.
TYPES = {
    "tensor(float)": (torch.float32, np.float32),
    "tensor(float16)": (torch.float16, np.float16),
    "tensor(double)": (torch.float64, np.float64),
}


class BoundSession:
    """A session that computes one `output` on `device`. Thread-safe.

    On a GPU, ONNX Runtime reads and writes PyTorch's memory. Its own memory would be reused by another thread's pass as
    soon as the tensor is freed, though PyTorch's kernels that read the tensor may still wait in their stream. On a CPU
    its arrays are used as they are: binding them takes longer.
    """

    def __init__(self, session: Any, output: Any, device: torch.device) -> None:
        """Take the session of ONNX Runtime, and its description of the output."""
        self._session, self._output, self._device = session, output.name, device
        self._width, self._types = output.shape[-1], TYPES.get(output.type)
        # A graph may leave the size of its output open, or have numbers of an uncommon type.
        self._binds = device.type != "cpu" and isinstance(self._width, int) and self._types is not None

    def run(self, inputs: Mapping[str, torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
        """int64 inputs on the session's device, `sizes` of the output without its last dimension → [*sizes, width]."""
        if self._binds:
            return self._bound(inputs, sizes)
        (made,) = self._session.run([self._output], {name: tensor.cpu().numpy() for name, tensor in inputs.items()})
        return torch.from_numpy(made).to(self._device)

    def _bound(self, inputs: Mapping[str, torch.Tensor], sizes: Sequence[int]) -> torch.Tensor:
        assert self._types is not None
        dtype, element = self._types
        made = torch.empty((*sizes, self._width), dtype=dtype, device=self._device)
        # ONNX Runtime has streams of its own. The inputs must have arrived before they are bound, which may copy them,
        # and no kernel may still read the memory that is now the output's.
        torch.cuda.current_stream(self._device).synchronize()
        binding, place = self._session.io_binding(), (self._device.type, self._device.index or 0)
        for name, tensor in inputs.items():
            binding.bind_input(name, *place, np.int64, tuple(tensor.shape), tensor.data_ptr())
        binding.bind_output(self._output, *place, element, tuple(made.shape), made.data_ptr())
        binding.synchronize_inputs()
        self._session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return made
