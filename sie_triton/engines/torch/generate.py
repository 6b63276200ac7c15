"""A transformers model that generates tokens from images or sounds. Inputs of the same shape run together.

Defaults for generation come from the checkpoint's generation_config.json.
"""

from collections.abc import Mapping
from time import monotonic_ns
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.contract.spec import AUTO
from sie_triton.engines import base
from sie_triton.engines.torch.attention.library import library_attention
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.prepack import lay_out
from sie_triton.engines.torch.tower import Pixels


class StopAtDeadline(StoppingCriteria):
    """Stopping criterion that ends the whole batch at `deadline_ns` (monotonic); None for no deadline."""

    def __init__(self, deadline_ns: int | None) -> None:
        self._deadline_ns = deadline_ns

    @property
    def is_over(self) -> bool:
        return self._deadline_ns is not None and monotonic_ns() >= self._deadline_ns

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self.is_over, device=input_ids.device)


class Writer(base.Encoder):
    """A generating model on the device of its weights. Thread-safe."""

    def __init__(self, model: PreTrainedModel) -> None:
        weights = next(model.parameters())
        self.device, self.dtype = weights.device, weights.dtype
        self.weights_bytes = num_bytes(model)
        self.vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
        self.config = model.config
        self._model: Any = model
        # transformers warns in every call if both max_length and max_new_tokens are set.
        self._model.generation_config.max_length = None

    def prepare(self, attention_backend: str = "auto") -> None:
        """Repack the weights for speed. Raise LoadError if the model does not support the attention backend."""
        # A repacked head is no faster for single rows, and it would no longer share its weights with the embeddings.
        head = self._model.get_output_embeddings()
        lay_out(self._model)
        self._model.set_output_embeddings(head)
        # A separate image encoder, like Donut's, may not support other attention implementations.
        writer = getattr(self._model, "decoder", self._model) if attention_backend == AUTO else self._model
        writer.set_attn_implementation(library_attention(writer, attention_backend))

    def write(
        self, inputs: Mapping[str, Any], new_tokens: int, num_beams: int, deadline: StopAtDeadline
    ) -> list[list[int]]:
        """Generate tokens for `inputs`, named as the model names them; each result begins with the input tokens."""
        return [list(map(int, row)) for row in self._generate(inputs, new_tokens, num_beams, deadline).tolist()]

    def _generate(self, inputs: Mapping[str, Any], new_tokens: int, num_beams: int, deadline: StopAtDeadline) -> Any:
        return self._model.generate(
            **inputs,
            max_new_tokens=new_tokens,
            num_beams=num_beams,
            do_sample=False,
            stopping_criteria=StoppingCriteriaList([deadline]),
        )

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self.device)


class Generator(Writer):
    """A generating model whose images all have the size of `plan`."""

    def __init__(self, model: PreTrainedModel, plan: ImagePlan) -> None:
        super().__init__(model)
        self._pixels = Pixels(plan, self.device, self.dtype)
        self.image_bytes = self._pixels.image_bytes

    @torch.inference_mode()
    def __call__(
        self,
        pixels: npt.NDArray[np.uint8],
        *,
        new_tokens: int,
        num_beams: int,
        deadline: StopAtDeadline,
        ids: dict[str, npt.NDArray[np.int32]],
        **options: Any,
    ) -> list[list[int]]:
        """Return the decoder's tokens of each item, which begin with the input tokens and may end with padding.

        `pixels` is uint8 [items, image_bytes]; `ids` maps the model's input names to int32 [items, tokens].
        """
        inputs = {
            "pixel_values": self._pixels(pixels),
            **{name: self._tensor(each) for name, each in ids.items()},
            **options,
        }
        return self.write(inputs, new_tokens, num_beams, deadline)
