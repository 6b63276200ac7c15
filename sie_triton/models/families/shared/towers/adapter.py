"""The forward pass of two encoders with a common embedding space. An item is a text or an image."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sie_triton.checkpoints.open_clip import OpenClipFiles, is_open_clip
from sie_triton.contract import Batch, Ragged, Rows
from sie_triton.contract.arrays import Ints
from sie_triton.contract.tensors import DENSE, IMAGE_SIZES, INPUT_IDS, LENGTHS, PIXEL_LENGTHS, PIXELS, READ
from sie_triton.engines.torch.encoder import TorchEncoder
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.engines.torch.tower import NaflexTower, VisionTower
from sie_triton.models.families.base import Adapter
from sie_triton.models.inputs.features import copies


class TowerAdapter(Adapter):
    """Base of adapters for two towers.

    `longest_text`, in tokens, and `image_length`, in patches, limit what is read of an item.
    """

    encoder: TorchEncoder

    def __init__(
        self, encoder: TorchEncoder, vision: VisionTower | NaflexTower, longest_text: int, image_length: int
    ) -> None:
        limits = {
            INPUT_IDS.name: encoder.vocab_size - 1,
            LENGTHS.name: longest_text,
            PIXEL_LENGTHS.name: vision.image_bytes,
            READ.name: max(longest_text, image_length),
        }
        super().__init__(encoder, limits=limits)
        self._vision = vision
        self.weights_bytes += vision.weights_bytes
        height, width = vision.largest
        # An image costs more than a text.
        image = {
            READ.name: Ragged(np.array([image_length], np.int32)),
            INPUT_IDS.name: Ragged.of([np.empty(0, np.int32)]),
            PIXELS.name: Ragged.of([np.zeros(3 * height * width, np.uint8)]),
            IMAGE_SIZES.name: Ragged(np.array([[height, width]], np.int32)),
        }
        self.sample = partial(copies, image, image_length)

    @abstractmethod
    def texts(self, input_ids: Ints, lengths: Ints) -> torch.Tensor:
        """Return embeddings, [texts, dim]."""

    @abstractmethod
    def images(self, pixels: npt.NDArray[np.uint8], shapes: Ints) -> torch.Tensor:
        """Embed images: uint8 [bytes], int32 [images, 2] height and width in pixels → [images, dim]."""

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Rows:
        (ids, lengths), (pixels, sizes) = batch.features[INPUT_IDS.name], batch.features[PIXELS.name]
        assert lengths is not None
        assert sizes is not None
        is_image, shapes = sizes > 0, batch.features[IMAGE_SIZES.name].values
        if ((lengths > 0) == is_image).any() or not self._vision.takes(sizes[is_image], shapes[is_image]):
            raise ValueError("an item must be a text or an image")
        texts = [self.texts(ids, lengths[lengths > 0])] if len(ids) else []
        images = [self.images(pixels, shapes[is_image])] if len(pixels) else []
        return in_place(is_image, texts, images)


def in_place(is_other: npt.NDArray[np.bool_], texts: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> Rows:
    """Return the vectors of all items in their order: those of texts, [texts, dim], and those of the others."""
    found = [(~is_other, vectors) for vectors in texts] + [(is_other, vectors) for vectors in others]
    rows = np.empty((len(is_other), found[0][1].shape[1]), np.float32)
    for places, vectors in found:
        rows[places] = vectors.float().cpu().numpy()
    return {DENSE.name: rows}


def towers(directory: Path, engine: TorchEngine) -> Any:
    """Load transformers' model of both towers, with its weights; raise LoadError if it cannot be used."""
    if is_open_clip(directory):
        return engine.load_towers(OpenClipFiles.read(directory))
    return engine.load(directory)
