"""A transformers model that answers about images in tokens, one after another; items with inputs of one shape together.

What a request does not say is as the checkpoint's generation_config.json has it.
"""

from collections.abc import Mapping
from time import monotonic_ns
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, StoppingCriteria, StoppingCriteriaList

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.engines import base
from sie_triton.engines.torch.encoder import library_attention, num_bytes
from sie_triton.engines.torch.pixels import Pixels
from sie_triton.engines.torch.prepack import lay_out


class Deadline(StoppingCriteria):
    """Ends all answers at `deadline_ns`, monotonic; None: never."""

    def __init__(self, deadline_ns: int | None) -> None:
        self._deadline_ns = deadline_ns

    @property
    def is_over(self) -> bool:
        return self._deadline_ns is not None and monotonic_ns() >= self._deadline_ns

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), self.is_over, device=input_ids.device)


class Writer(base.Encoder):
    """Runs `model` on the device its weights are on. Several threads may call it side by side."""

    def __init__(self, model: PreTrainedModel) -> None:
        weights = next(model.parameters())
        self.device, self.dtype = weights.device, weights.dtype
        self.weights_bytes = num_bytes(model)
        self.vocab_size = int(model.config.get_text_config(decoder=True).vocab_size)
        self.config = model.config
        self._model: Any = model
        # It would stand beside the number of new tokens, with a warning for every answer.
        self._model.generation_config.max_length = None

    def prepare(self) -> None:
        """Lay the weights out for speed."""
        # One row at a time is no faster through a head laid out anew, and its weights are those of the embeddings.
        head = self._model.get_output_embeddings()
        lay_out(self._model)
        self._model.set_output_embeddings(head)
        # An encoder of images of its own, as Donut's, may have no choice.
        writer = getattr(self._model, "decoder", self._model)
        writer.set_attn_implementation(library_attention(writer))

    def write(self, inputs: Mapping[str, Any], new_tokens: int, num_beams: int, deadline: Deadline) -> list[list[int]]:
        """`inputs` as the model names them → the tokens of each item; what it was given of them stands first."""
        tokens: torch.Tensor = self._model.generate(
            **inputs,
            max_new_tokens=new_tokens,
            num_beams=num_beams,
            do_sample=False,
            stopping_criteria=StoppingCriteriaList([deadline]),
        )
        return [list(map(int, row)) for row in tokens.tolist()]

    def _tensor(self, array: npt.NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.int64)).to(self.device)


class Generator(Writer):
    """All images are as large as `plan` makes them."""

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
        deadline: Deadline,
        ids: dict[str, npt.NDArray[np.int32]],
        **options: Any,
    ) -> list[list[int]]:
        """uint8 [items, image_bytes], int32 [items, tokens] by the model's names → the decoder's tokens of each item.

        Those that it was given stand first, and padding may stand last.
        """
        inputs = {
            "pixel_values": self._pixels(pixels),
            **{name: self._tensor(each) for name, each in ids.items()},
            **options,
        }
        return self.write(inputs, new_tokens, num_beams, deadline)
