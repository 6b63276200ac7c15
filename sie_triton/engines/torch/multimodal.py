"""A language model over states that are put together elsewhere: of words, and of what a vision tower has seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from sie_triton.engines.torch.attention import Segments, attending
from sie_triton.engines.torch.encoder import PACKED, Encoder, Ints
from sie_triton.engines.torch.rows import spare_rows

# How models call what sees, in the names of their layers.
VISION = frozenset({"visual", "vision_tower", "vision_model"})


@dataclass(frozen=True, slots=True)
class Seen:
    """States of images that go into later layers: one tensor for each of the first of these, [tokens of images, d].

    `places`, int64 [tokens of images], is where those tokens stand, in order.
    """

    places: torch.Tensor
    deep: Sequence[torch.Tensor]

    def within(self, start: int, end: int) -> "Seen":
        """Of the tokens from `start` to `end`, counted from there."""
        is_there = (self.places >= start) & (self.places < end)
        return Seen(self.places[is_there] - start, [states[is_there] for states in self.deep])

    def arguments(self, num_tokens: int) -> dict[str, Any]:
        """As transformers takes them, for a row of so many tokens."""
        mask = torch.zeros(1, num_tokens, dtype=torch.bool, device=self.places.device)
        mask[0, self.places] = True
        return {"visual_pos_masks": mask, "deepstack_visual_embeds": self.deep}


class LanguageModel(Encoder):
    """An encoder that can be given states in place of tokens. What cannot be packed is run item by item."""

    is_exportable = False

    def __init__(self, model: PreTrainedModel, attention_backend: str = "auto") -> None:
        super().__init__(model, attention_backend)
        self.loras.model.beside, self.loras.model.splits = VISION, False
        # Item by item is never the faster.
        self.paths = (PACKED,)

    @torch.inference_mode()
    def states(self, input_ids: Ints) -> torch.Tensor:
        """int32 [tokens] → [tokens, d], as the first layer gets them."""
        embed: Any = self.model.get_input_embeddings()
        embedded: torch.Tensor = embed(self._tensor(input_ids))
        return embedded

    @torch.inference_mode()
    def hidden_states_of(
        self, states: torch.Tensor, lengths: Ints, positions: Ints, seen: Seen | None = None
    ) -> torch.Tensor:
        """[tokens, d] of items end to end, lengths int32 [items], positions int32 [rows, tokens] → [tokens, d].

        `rows` is 1, or as many as the model has kinds of positions.
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

    def _packed_states(self, states: torch.Tensor, lengths: Ints, positions: Ints, seen: Seen | None) -> torch.Tensor:
        num_tokens = len(states)
        spare = spare_rows(num_tokens) if self.device.type == "cpu" else 0
        if spare:
            states = torch.cat([states, states.new_zeros(spare, states.shape[1])])
            lengths = np.append(lengths, spare).astype(np.int32)
            positions = np.pad(positions, ((0, 0), (0, spare)))
        with attending(Segments.of(lengths.tolist()), self.kernel), self.loras.over(lengths.tolist()):
            return self._run_states(states, positions, seen)[:num_tokens]

    def _run_states(self, states: torch.Tensor, positions: Ints, seen: Seen | None) -> torch.Tensor:
        # [1, tokens], or [rows, 1, tokens] where a token has several.
        places = positions if len(positions) == 1 else positions[:, None]
        more = {} if seen is None else seen.arguments(len(states))
        return self.forward(inputs_embeds=states[None], position_ids=self._tensor(places), **more)[0]
