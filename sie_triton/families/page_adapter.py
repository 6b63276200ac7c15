"""The forward pass over pages and questions: states of words, and of images in their places, in one packed row."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.contract import Batch, Features, Ragged, Rows
from sie_triton.contract.tensors import INPUT_IDS, MULTIVECTOR, MULTIVECTOR_LENGTHS, PIXELS, READ
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.multimodal import LanguageModel
from sie_triton.families.base import Adapter
from sie_triton.families.token_batch import tokens

Ints = npt.NDArray[np.int32]


class PageAdapter(Adapter):
    """`page` are the features of one image such as clients send, `limits` as in Adapter."""

    encoder: LanguageModel

    def __init__(
        self,
        encoder: LanguageModel,
        projection: torch.nn.Module,
        image_token: int,
        page: Features,
        limits: dict[str, int],
    ) -> None:
        largest = max(encoder.vocab_size - 1, image_token)
        super().__init__(encoder, limits={INPUT_IDS.name: largest, **limits})
        self.weights_bytes += num_bytes(projection)
        self._projection, self._image_token, self._page = projection, image_token, page
        self.sample = self._sample

    @abstractmethod
    def images(self, batch: Batch) -> tuple[torch.Tensor, Ints]:
        """States of the images of all items [tokens of images, d], and how many of them each item has, int32 [items].

        ValueError where the features are of no images that the model reads.
        """

    @abstractmethod
    def positions(self, batch: Batch) -> Ints:
        """Of the tokens of all items, int32 [rows, tokens]."""

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        input_ids, lengths = tokens(batch)
        states = self._states(batch, input_ids, lengths)
        hidden = self.encoder.hidden_states_of(states, lengths, self.positions(batch))
        vectors = torch.nn.functional.normalize(self._projection(hidden).float(), dim=-1)
        return {MULTIVECTOR.name: vectors.cpu().numpy(), MULTIVECTOR_LENGTHS.name: lengths}

    def _states(self, batch: Batch, input_ids: Ints, lengths: Ints) -> torch.Tensor:
        # The token of an image may be none of the vocabulary; in a text, where a client wrote it, it is a token.
        is_known = input_ids < self.encoder.vocab_size
        states = self.encoder.states(np.where(is_known, input_ids, 0))
        if not len(batch.features[PIXELS.name].values):
            return states
        of_images, counts = self.images(batch)
        items = np.repeat(np.arange(len(lengths)), lengths)
        places = np.flatnonzero((input_ids == self._image_token) & (counts[items] > 0))
        if (np.bincount(items[places], minlength=len(lengths)) != counts).any():
            raise ValueError("an image must have as many tokens as states")
        states[torch.from_numpy(places).to(states.device)] = of_images.to(states.dtype)
        return states

    def _sample(self, lengths: Sequence[int]) -> Features:
        """Pages, of which each costs more than a text."""
        count = max(1, round(sum(lengths) / int(self._page[READ.name].values[0])))
        return {name: _repeated(ragged, count) for name, ragged in self._page.items()}


def _repeated(ragged: Ragged, count: int) -> Ragged:
    of_items: Any = None if ragged.lengths is None else np.tile(ragged.lengths, count)
    return Ragged(np.concatenate([ragged.values] * count), of_items)
