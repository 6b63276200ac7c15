"""Linear layers in 8 bits, for encoders on a CPU: weights by output channel, activations by row.

Everything between the layers stays float32. No vector depends on its batch. docs/decisions/kernels.md has measurements.
"""

import logging

import numpy as np
import torch

from sie_triton.contract.arrays import Ints
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch import cpu_kernels as kernels
from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.engines.torch.prepack import GELU, PrepackedLinear
from sie_triton.errors import LoadError

# Least cosine between an item's states, summed over its tokens, in 8 bits and in float32.
MIN_COSINE = 0.98

# Lengths, in tokens, of the random items that are compared, if the model reads so many.
LENGTHS = np.array([3, 12, 33, 64], np.int32)

log = logging.getLogger(__name__)


class Int8Linear(PrepackedLinear):
    """`linear` with its weight rounded to 8 bits. Its shape must be one that `kernels.takes_int8` accepts."""

    def __init__(self, linear: PrepackedLinear) -> None:
        torch.nn.Module.__init__(self)
        self.weight, self.bias, self.has_gelu = linear.weight, linear.bias, linear.has_gelu
        self._panels = kernels.int8_panels(linear.whole_weight())

    def _computed(
        self, inputs: torch.Tensor, bias: torch.Tensor | None, activation: tuple[str, list[float], str]
    ) -> torch.Tensor:
        return kernels.int8_linear(inputs, self._panels, bias, has_gelu=activation == GELU)


@torch.inference_mode()
def quantize(encoder: TorchEncoder, max_length: int, measurements: Measurements, name: str) -> None:
    """Round the prepacked layers of `encoder`, which has a path, to 8 bits.

    `max_length`: the number of tokens that the model reads. The least cosine to float32 is stored in the measurements
    as `name`. Raise LoadError if it is below MIN_COSINE.
    """
    known = measurements.get(name)
    lengths = np.minimum(LENGTHS, max_length)
    before = None if known is not None else _vectors(encoder, lengths)
    num_layers = _replace_layers(encoder)
    if not num_layers:
        log.warning("int8 was requested, but this encoder has no linear layer that supports it: using float32")
        return
    if before is not None:
        known = float(torch.cosine_similarity(before, _vectors(encoder, lengths)).min())
        measurements.put(**{name: known})
    if not known >= MIN_COSINE:
        raise refusal(f"token states, a cosine of {known:.3f}, below {MIN_COSINE}")
    log.info("%d linear layers are computed in 8 bits, with a cosine of %.4f to float32", num_layers, known)


def refusal(what: str) -> LoadError:
    """Return the error for a model whose results differ from float32 in `what`."""
    remedy = "write compute_precision: bfloat16 or float32 into its model file"
    return LoadError(f"int8 changes this model's results: {what}; {remedy}", "unsupported")


def _vectors(encoder: TorchEncoder, lengths: Ints) -> torch.Tensor:
    input_ids = encoder.draws.ordinary(int(lengths.sum()), seed=1)
    states = torch.split(encoder.hidden_states(input_ids, lengths), lengths.tolist())
    return torch.stack([each.sum(0) for each in states])


def _replace_layers(encoder: TorchEncoder) -> int:
    found = [
        (parent, name, layer)
        for parent in encoder.model.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, PrepackedLinear) and kernels.takes_int8(layer.weight.shape)
    ]
    for parent, name, layer in found:
        setattr(parent, name, Int8Linear(layer))
        encoder.weights_bytes -= 3 * layer.weight.numel()
    return len(found)
