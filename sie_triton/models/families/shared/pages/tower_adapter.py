"""Adapters of pages whose vision tower makes equally many states of each picture: an image, or a tile of one."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from sie_triton.checkpoints.page_models import PageFiles
from sie_triton.contract import Batch, Features
from sie_triton.contract.arrays import Ints
from sie_triton.contract.tensors import PIXEL_LENGTHS, PIXELS
from sie_triton.engines.torch.encoder import num_bytes
from sie_triton.engines.torch.multimodal import LanguageModel
from sie_triton.engines.torch.prepack import own_pages
from sie_triton.engines.torch.rows import placed
from sie_triton.engines.torch.tower import VisionTower
from sie_triton.models.families.shared.pages.multimodal_adapter import MultimodalAdapter
from sie_triton.models.families.shared.token_batch import tokens


class PageTowerAdapter(MultimodalAdapter):
    """Adapter of such models. Positions are from `first_position` on.

    `connector` makes states of the language model of those of the tower. An image has at most `most_pictures`.
    """

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
        first_position: int = 0,
    ) -> None:
        of_pixels = {PIXEL_LENGTHS.name: most_pictures * vision.image_bytes}
        super().__init__(encoder, files, page, {**of_pixels, **limits}, projection)
        own_pages(connector)
        self._vision, self._connector, self._first_position = vision, connector, first_position
        self.weights_bytes += vision.weights_bytes + num_bytes(connector)

    def images(self, batch: Batch) -> tuple[Sequence[torch.Tensor], Ints]:
        pixels, sizes = batch.features[PIXELS.name]
        assert sizes is not None
        if (sizes % self._vision.image_bytes).any():
            raise ValueError(f"each picture must have {self._vision.image_bytes} bytes")
        states = self._connector(self._vision(pixels).last_hidden_state)
        return [states.flatten(0, 1)], (sizes // self._vision.image_bytes * states.shape[1]).astype(np.int32)

    def positions(self, batch: Batch) -> Ints:
        _, places = placed(tokens(batch)[1])
        return (places + self._first_position)[None].astype(np.int32)
