"""The forward pass over texts and images: states of words, and of images in their places, in one packed row."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.contract import Batch, Features, Ragged, Rows
from sie_triton.contract.tensors import INPUT_IDS, MULTIVECTOR, MULTIVECTOR_LENGTHS, PIXELS, READ
from sie_triton.engines.torch.multimodal import LanguageModel, Seen
from sie_triton.families.base import Adapter
from sie_triton.families.token_batch import tokens

Ints = npt.NDArray[np.int32]


# Of colpali-engine's classes, and of transformers'.
PROJECTION, PROJECTION_OF_TRANSFORMERS = "custom_text_proj", "embedding_proj_layer"


class MultimodalAdapter(Adapter):
    """`page` are the features of one image such as clients send, `limits` as in Adapter."""

    encoder: LanguageModel

    def __init__(self, encoder: LanguageModel, image_token: int, page: Features, limits: dict[str, int]) -> None:
        largest = max(encoder.vocab_size - 1, image_token)
        super().__init__(encoder, limits={INPUT_IDS.name: largest, **limits})
        self.image_token, self._page = image_token, page
        self.sample = self._sample

    @abstractmethod
    def images(self, batch: Batch) -> tuple[Sequence[torch.Tensor], Ints]:
        """States of the images of all items, for the first layer of the language model and for those behind it that
        are shown some, [tokens of images, d] each; and how many of them each item has, int32 [items].

        ValueError where the features are of no images that the model reads.
        """

    @abstractmethod
    def positions(self, batch: Batch) -> Ints:
        """Of the tokens of all items, int32 [rows, tokens]."""

    @torch.inference_mode()
    def hidden_states(self, batch: Batch) -> torch.Tensor:
        """Of all items [tokens, d]."""
        input_ids, lengths = tokens(batch)
        # The token of an image may be none of the vocabulary; in a text, where a client wrote it, it is a token.
        with self.encoder.loras.over(lengths.tolist()):
            states = self.encoder.states(np.where(input_ids < self.encoder.vocab_size, input_ids, 0))
        seen = None
        if len(batch.features[PIXELS.name].values):
            (of_images, *deep), counts = self.images(batch)
            places = torch.from_numpy(self._places(input_ids, lengths, counts)).to(states.device)
            states[places] = of_images.to(states.dtype)
            seen = Seen(places, deep) if deep else None
        return self.encoder.hidden_states_of(states, lengths, self.positions(batch), seen)

    def _places(self, input_ids: Ints, lengths: Ints, counts: Ints) -> npt.NDArray[np.int64]:
        """Of the tokens of images."""
        items = np.repeat(np.arange(len(lengths)), lengths)
        places = np.flatnonzero((input_ids == self.image_token) & (counts[items] > 0))
        if (np.bincount(items[places], minlength=len(lengths)) != counts).any():
            raise ValueError("an image must have as many tokens as states")
        return places

    def _sample(self, lengths: Sequence[int]) -> Features:
        """Images, of which each costs more than a text."""
        count = max(1, round(sum(lengths) / int(self._page[READ.name].values[0])))
        return {name: _repeated(ragged, count) for name, ragged in self._page.items()}


class UnitVectors:
    """One of each token, of what `projection` makes of its state; LoRA adapters may change that too."""

    def __init__(self, encoder: LanguageModel, projection: torch.nn.Module) -> None:
        self._encoder = encoder
        self._layers = torch.nn.ModuleDict({PROJECTION: projection})
        encoder.loras.model.heads.append(self._layers)
        encoder.loras.model.aliases[PROJECTION_OF_TRANSFORMERS] = PROJECTION

    def __call__(self, hidden: torch.Tensor, lengths: Ints) -> Rows:
        with self._encoder.loras.over(lengths.tolist()):
            projected = self._layers[PROJECTION](hidden)
        vectors = torch.nn.functional.normalize(projected.float(), dim=-1)
        return {MULTIVECTOR.name: vectors.cpu().numpy(), MULTIVECTOR_LENGTHS.name: lengths}


def _repeated(ragged: Ragged, count: int) -> Ragged:
    of_items: Any = None if ragged.lengths is None else np.tile(ragged.lengths, count)
    return Ragged(np.concatenate([ragged.values] * count), of_items)
