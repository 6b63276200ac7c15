"""A language model that reads states instead of tokens: states of words, and of images from a vision tower."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from sie_triton.contract.arrays import Ints
from sie_triton.engines.torch.attention import Segments, attending
from sie_triton.engines.torch.encoder import PACKED, TorchEncoder
from sie_triton.engines.torch.rows import spare_items


@dataclass(frozen=True, slots=True)
class ImageStates:
    """Image states that are added after the first layers."""

    places: torch.Tensor  # int64 [image tokens]: their positions in the sequence, in order
    deep: Sequence[torch.Tensor]  # for each layer [image tokens, d]

    def within(self, start: int, end: int) -> "ImageStates":
        """Return the part for the tokens from `start` to `end`, with places relative to `start`."""
        is_there = (self.places >= start) & (self.places < end)
        return ImageStates(self.places[is_there] - start, [states[is_there] for states in self.deep])

    def arguments(self, num_tokens: int) -> dict[str, Any]:
        """Return the keyword arguments of transformers for a row of `num_tokens` tokens."""
        mask = torch.zeros(1, num_tokens, dtype=torch.bool, device=self.places.device)
        mask[0, self.places] = True
        return {"visual_pos_masks": mask, "deepstack_visual_embeds": self.deep}


class LanguageModel(TorchEncoder):
    """Encoder that reads states instead of tokens. If the model cannot be packed, items run one by one."""

    is_exportable = False

    def __init__(self, model: PreTrainedModel, attention_backend: str = "auto") -> None:
        super().__init__(model, attention_backend)
        self.loras.model.other_encoders = frozenset({"visual", "vision_tower", "vision_model"})
        self.loras.model.splits = False
        # One item at a time is never faster.
        self.paths = (PACKED,)

    @torch.inference_mode()
    def states(self, input_ids: Ints) -> torch.Tensor:
        """Return the input states [tokens, d] of the first layer for token ids, int32 [tokens]."""
        embed: Any = self.model.get_input_embeddings()
        embedded: torch.Tensor = embed(self._tensor(input_ids))
        return embedded

    @torch.inference_mode()
    def hidden_states_of(
        self, states: torch.Tensor, lengths: Ints, positions: Ints, seen: ImageStates | None = None
    ) -> torch.Tensor:
        """Return the last hidden states [tokens, d] for input states [tokens, d] of items end to end.

        `lengths` is int32 [items], `positions` int32 [rows, tokens]; rows is 1, or the number of position kinds that
        the model has.
        """
        if self.path == PACKED:
            return self._packed_states(states, lengths, positions, seen)
        made, end = [], 0
        for item, length in enumerate(lengths.tolist()):
            start, end = end, end + length
            of_item = None if seen is None else seen.within(start, end)
            with self.loras.over([length], [item]):
                made.append(self._run_states(states[start:end], positions[:, start:end], of_item))
        return torch.cat(made)

    def _packed_states(
        self, states: torch.Tensor, lengths: Ints, positions: Ints, seen: ImageStates | None
    ) -> torch.Tensor:
        num_tokens = len(states)
        spare = spare_items(num_tokens) if self.device.type == "cpu" else []
        if spare:
            states = torch.cat([states, states.new_zeros(sum(spare), states.shape[1])])
            lengths = np.append(lengths, spare).astype(np.int32)
            positions = np.pad(positions, ((0, 0), (0, sum(spare))))
        with attending(Segments.of(lengths.tolist()), self.kernel), self.loras.over(lengths.tolist()):
            return self._run_states(states, positions, seen)[:num_tokens]

    def _run_states(self, states: torch.Tensor, positions: Ints, seen: ImageStates | None) -> torch.Tensor:
        # [1, tokens], or [rows, 1, tokens] if a token has several positions.
        places = positions if len(positions) == 1 else positions[:, None]
        more = {} if seen is None else seen.arguments(len(states))
        return self.forward(inputs_embeds=states[None], position_ids=self._tensor(places), **more)[0]
