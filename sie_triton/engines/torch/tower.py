"""An encoder within a model, run with transformers' own code. All inputs of a batch have one size."""

from transformers import PreTrainedModel

from sie_triton.engines.torch.attention.library import library_attention
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.prepack import lay_out


class Tower:
    """A transformers model on the device of its weights."""

    def __init__(self, model: PreTrainedModel) -> None:
        weights = next(model.parameters())
        self.device, self.dtype = weights.device, weights.dtype
        self.weights_bytes = num_bytes(model)
        self._model = model

    def prepare(self, attention_backend: str = "auto") -> None:
        """Repack the weights for speed. Raise LoadError if the model does not support the attention backend."""
        lay_out(self._model)
        self._model.set_attn_implementation(library_attention(self._model, attention_backend))
