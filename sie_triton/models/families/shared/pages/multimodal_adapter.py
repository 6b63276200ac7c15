"""The forward pass over texts and images: states of words and images in one packed row, then a vector for each."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.contract import Batch, Features, Rows
from sie_triton.contract.arrays import Ints
from sie_triton.contract.tensors import INPUT_IDS, MULTIVECTOR, MULTIVECTOR_LENGTHS, PIXELS, READ
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.multimodal import ImageStates, LanguageModel
from sie_triton.engines.torch.prepack import own_pages
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.shared.token_batch import tokens
from sie_triton.models.inputs.features import copies

# Names of the projection in colpali-engine and in transformers.
PROJECTION = "custom_text_proj"


class MultimodalAdapter(Adapter):
    """Base of adapters for language models with images; by default, each token has a vector of length 1.

    `projection` makes vectors of states, and LoRA adapters may change it; without it, the states are the vectors.
    `page` are the features of a typical image, for measuring.
    """

    encoder: LanguageModel

    def __init__(
        self,
        encoder: LanguageModel,
        files: PageFiles,
        page: Features,
        limits: Mapping[str, int],
        projection: torch.nn.Module | None = None,
    ) -> None:
        largest = max(encoder.vocab_size - 1, files.image_token)
        super().__init__(encoder, limits={INPUT_IDS.name: largest, **limits})
        self.image_token = files.image_token
        self._layers = torch.nn.ModuleDict({} if projection is None else {PROJECTION: projection})
        if projection is not None:
            own_pages(projection)
            encoder.loras.model.heads.append(self._layers)
            encoder.loras.model.aliases["embedding_proj_layer"] = PROJECTION
            self.weights_bytes += num_bytes(projection)
        # An image costs more than a text.
        self.sample = partial(copies, page, int(page[READ.name].values[0]))

    @abstractmethod
    def images(self, batch: Batch) -> tuple[Sequence[torch.Tensor], Ints]:
        """Return the states of all images, and the number of states in each item, int32 [items].

        The states, [image tokens, d], are for the first layer of the language model and for those after it that take
        some. Raises ValueError if the features are not images that the model reads.
        """

    @abstractmethod
    def positions(self, batch: Batch) -> Ints:
        """Return the positions of all tokens, int32 [rows, tokens]."""

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        vectors, lengths = self.hidden_states(batch), tokens(batch)[1]
        for layer in self._layers.values():
            with self.encoder.loras.over(lengths.tolist()):
                vectors = layer(vectors)
        vectors = torch.nn.functional.normalize(vectors.float(), dim=-1)
        return {MULTIVECTOR.name: vectors.cpu().numpy(), MULTIVECTOR_LENGTHS.name: lengths}

    @torch.inference_mode()
    def hidden_states(self, batch: Batch) -> torch.Tensor:
        """Return the states of all tokens, [tokens, d]."""
        input_ids, lengths = tokens(batch)
        # The image token may be outside the vocabulary. In a text, where a client wrote it, it is an ordinary token.
        with self.encoder.loras.over(lengths.tolist()):
            states = self.encoder.states(np.where(input_ids < self.encoder.vocab_size, input_ids, 0))
        seen = None
        if len(batch.features[PIXELS.name].values):
            (of_images, *deep), counts = self.images(batch)
            places = torch.from_numpy(self._places(input_ids, lengths, counts)).to(states.device)
            states[places] = of_images.to(states.dtype)
            seen = ImageStates(places, deep) if deep else None
        return self.encoder.hidden_states_of(states, lengths, self.positions(batch), seen)

    def _places(self, input_ids: Ints, lengths: Ints, counts: Ints) -> npt.NDArray[np.int64]:
        """Return the indices of image tokens."""
        items = np.repeat(np.arange(len(lengths)), lengths)
        places = np.flatnonzero((input_ids == self.image_token) & (counts[items] > 0))
        if (np.bincount(items[places], minlength=len(lengths)) != counts).any():
            raise ValueError("an image must have as many tokens as states")
        return places
