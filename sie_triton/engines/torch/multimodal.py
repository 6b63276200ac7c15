"""A language model over states that are put together elsewhere: of words, and of what a vision tower has seen."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from sie_triton.engines.torch.attention import Segments, attending
from sie_triton.engines.torch.encoder import PACKED, Encoder, Ints, spare_rows


class LanguageModel(Encoder):
    """An encoder that can be given states in place of tokens."""

    def __init__(self, model: PreTrainedModel, attention_backend: str = "auto") -> None:
        super().__init__(model, attention_backend)
        self._embed: Any = model.get_input_embeddings()

    @torch.inference_mode()
    def states(self, input_ids: Ints) -> torch.Tensor:
        """int32 [tokens] → [tokens, d], as the first layer gets them."""
        embedded: torch.Tensor = self._embed(self._tensor(input_ids))
        return embedded

    @torch.inference_mode()
    def hidden_states_of(self, states: torch.Tensor, lengths: Ints, positions: Ints) -> torch.Tensor:
        """[tokens, d] of items end to end, lengths int32 [items], positions int32 [rows, tokens] → [tokens, d].

        `rows` is 1, or as many as the model has kinds of positions.
        """
        if self.path == PACKED:
            return self._packed_states(states, lengths, positions)
        parts = zip(
            torch.split(states, lengths.tolist()), np.split(positions, np.cumsum(lengths)[:-1], axis=1), strict=True
        )
        return torch.cat([self._run_states(of_item, places) for of_item, places in parts])

    def _packed_states(self, states: torch.Tensor, lengths: Ints, positions: Ints) -> torch.Tensor:
        num_tokens = len(states)
        spare = spare_rows(num_tokens) if self.device.type == "cpu" else 0
        if spare:
            states = torch.cat([states, states.new_zeros(spare, states.shape[1])])
            lengths = np.append(lengths, spare).astype(np.int32)
            positions = np.pad(positions, ((0, 0), (0, spare)))
        with attending(Segments.of(lengths.tolist()), self.kernel):
            return self._run_states(states, positions)[:num_tokens]

    def _run_states(self, states: torch.Tensor, positions: npt.NDArray[Any]) -> torch.Tensor:
        # [1, tokens], or [rows, 1, tokens] where a token has several.
        places = positions if len(positions) == 1 else positions[:, None]
        return self._forward(inputs_embeds=states[None], position_ids=self._tensor(places))[0]
