"""Adapters of pages whose vision tower makes equally many states of each picture: an image, or a tile of one."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.contract import Batch, Features, Rows
from sie_triton.contract.arrays import Ints
from sie_triton.contract.tensors import PIXEL_LENGTHS, PIXELS
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.multimodal import LanguageModel
from sie_triton.engines.torch.rows import placed
from sie_triton.engines.torch.tower import VisionTower
from sie_triton.models.families.shared.pages.multimodal_adapter import MultimodalAdapter, UnitVectors
from sie_triton.models.families.shared.token_batch import tokens


class PageTowerAdapter(MultimodalAdapter):
    """Base of such adapters: a vector for each token, by `projection`.

    `connector` makes states of the language model of those of the tower. An image has at most `most_pictures`.
    """

    first_position: ClassVar[int] = 0

    def __init__(
        self,
        encoder: LanguageModel,
        vision: VisionTower,
        connector: torch.nn.Module,
        projection: torch.nn.Module,
        files: PageFiles,
        page: Features,
        limits: Mapping[str, int],
        most_pictures: int = 1,
    ) -> None:
        of_pixels = {PIXEL_LENGTHS.name: most_pictures * vision.image_bytes}
        super().__init__(encoder, files.image_token, page, {**of_pixels, **limits})
        self._vision, self._connector = vision, connector
        self._vectors = UnitVectors(encoder, projection)
        self.weights_bytes += vision.weights_bytes + num_bytes(connector) + num_bytes(projection)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        return self._vectors(self.hidden_states(batch), tokens(batch)[1])

    def images(self, batch: Batch) -> tuple[Sequence[torch.Tensor], Ints]:
        pixels, sizes = batch.features[PIXELS.name]
        assert sizes is not None
        if (sizes % self._vision.image_bytes).any():
            raise ValueError(f"each picture must have {self._vision.image_bytes} bytes")
        states = self._connector(self._vision(pixels).last_hidden_state)
        return [states.flatten(0, 1)], (sizes // self._vision.image_bytes * states.shape[1]).astype(np.int32)

    def positions(self, batch: Batch) -> Ints:
        _, places = placed(tokens(batch)[1])
        return (places + self.first_position)[None].astype(np.int32)
