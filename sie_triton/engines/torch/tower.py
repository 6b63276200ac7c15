"""One of a model's encoders that is run as transformers wrote it: all that it reads at once has one size."""

from transformers import PreTrainedModel

from sie_triton.engines.torch.encoder import library_attention, num_bytes
from sie_triton.engines.torch.prepack import lay_out


class Tower:
    """Runs `model` on the device its weights are on."""

    def __init__(self, model: PreTrainedModel) -> None:
        weights = next(model.parameters())
        self.device, self.dtype = weights.device, weights.dtype
        self.weights_bytes = num_bytes(model)
        self._model = model

    def prepare(self) -> None:
        """Lay the weights out for speed."""
        lay_out(self._model)
        self._model.set_attn_implementation(library_attention(self._model))
