"""A transformers vision model for images of any shape, as a function of pixels. The patches of all images are packed.

Position embeddings are interpolated for each image's shape. An image's patches attend only to each other, so that no
padding is needed.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from sie_triton.checkpoints.naflex import NaflexPlan
from sie_triton.contract.arrays import Ints
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.attention import PACKED_ATTENTION, Segments, attending, choose_kernel
from sie_triton.engines.torch.attention_pooling import AttentionPooling
from sie_triton.engines.torch.probe import TOLERANCE, check_range, relative_error
from sie_triton.engines.torch.rows import spare_items
from sie_triton.engines.torch.tower import Tower
from sie_triton.errors import LoadError

CHANNELS = 3

# Shapes (rows, columns of patches) that are compared with the library, as far as the model reads that many patches.
COMPARED = ((1, 1), (2, 5), (7, 3), (5, 8))


class PackedVisionTower(Tower):
    """The vision model of SigLIP 2. LoadError if its results differ from the library's.

    `image_bytes` is the size of the largest image.
    """

    def __init__(self, model: PreTrainedModel, plan: NaflexPlan, attention: str, measurements: Measurements) -> None:
        super().__init__(model)
        self.kernel = choose_kernel(attention, self.device, self.dtype)
        self._parts: Any = model
        self._plan, self._side = plan, plan.patch_size
        self._patch_bytes = CHANNELS * self._side**2
        self.image_bytes = plan.max_num_patches * self._patch_bytes
        mean, std = (torch.tensor(each, device=self.device).repeat(self._side**2) for each in (plan.mean, plan.std))
        self._scale, self._offset = plan.scale / std, mean / std
        self._settle(measurements)

    def takes(self, lengths: Ints, shapes: Ints) -> bool:
        """Return whether sizes in bytes, and heights and widths in pixels, are those of images made by `plan`."""
        patches = shapes // self._side
        whole = (shapes == patches * self._side).all() and (patches > 0).all()
        num_patches = patches[:, 0].astype(np.int64) * patches[:, 1]
        fits = (patches <= self._plan.max_num_patches).all() and (num_patches <= self._plan.max_num_patches).all()
        return bool(whole and fits and (lengths == num_patches * self._patch_bytes).all())

    @property
    def largest(self) -> tuple[int, int]:
        """Height and width, in pixels, of a square image with about the maximum number of patches."""
        return self._plan.shape(1, 1)

    @torch.inference_mode()
    def vectors(self, pixels: npt.NDArray[np.uint8], shapes: Ints) -> torch.Tensor:
        """Return one vector per image, [images, d].

        `pixels` is uint8 [bytes], `shapes` int32 [images, 2]: height and width in pixels.
        """
        grids = (shapes // self._side).tolist()
        lengths = [rows * columns for rows, columns in grids]
        packed = self._embedded(self._patches(pixels, grids), grids)
        num_patches = len(packed)
        spare = spare_items(num_patches) if self.device.type == "cpu" else []
        if spare:
            packed = torch.nn.functional.pad(packed, (0, 0, 0, sum(spare)))
        row = Segments.of([*lengths, *spare])
        with attending(row, self.kernel):
            states = self._parts.encoder(inputs_embeds=packed[None], attention_mask=None).last_hidden_state
        states = self._parts.post_layernorm(states[0, :num_patches])
        vectors: torch.Tensor = self._parts.head(states, Segments.of(lengths))
        return vectors

    def _patches(self, pixels: npt.NDArray[np.uint8], grids: list[list[int]]) -> torch.Tensor:
        """Return the normalised patches of all images, [patches, values per patch]."""
        flat, side = torch.from_numpy(pixels).to(self.device), self._side
        ends = np.cumsum([0, *(rows * columns * self._patch_bytes for rows, columns in grids)]).tolist()
        images = [
            flat[start:end].view(rows, side, columns, side, CHANNELS).transpose(1, 2).reshape(-1, self._patch_bytes)
            for (start, end), (rows, columns) in zip(pairwise(ends), grids, strict=True)
        ]
        return (torch.cat(images).float() * self._scale - self._offset).to(self.dtype)

    def _embedded(self, patches: torch.Tensor, grids: list[list[int]]) -> torch.Tensor:
        """Embed the patches, and add the embedding of each one's position in its image."""
        embeddings = self._parts.embeddings
        side = embeddings.position_embedding_size
        known = embeddings.position_embedding.weight.view(side, side, -1)
        positions = [
            embeddings.resize_positional_embeddings(known, torch.tensor([[rows, columns]]), rows * columns)[0]
            for rows, columns in grids
        ]
        embedded: torch.Tensor = embeddings.patch_embedding(patches) + torch.cat(positions)
        return embedded

    def _settle(self, measurements: Measurements) -> None:
        """Prepare the model for speed. The first time, compare its results with the library's eager attention."""
        known = measurements.get("probe_images")
        grids = [grid for grid in COMPARED if grid[0] * grid[1] <= self._plan.max_num_patches]
        shapes = np.array(grids, np.int32) * self._side
        pixels = np.random.default_rng(0).integers(0, 256, int(shapes.prod(1).sum()) * CHANNELS, dtype=np.uint8)
        expected = None if known is not None else self._eager(pixels, shapes)
        self._parts.head = AttentionPooling(self._parts.head)
        self.prepare()
        self._model.set_attn_implementation(PACKED_ATTENTION)
        if expected is not None:
            error = relative_error(self.vectors(pixels, shapes), expected)
            if not error <= TOLERANCE[self.dtype]:
                check_range(error, self.dtype)
                message = f"packed images of several shapes differ from transformers' results by {error:.0e}"
                raise LoadError(message, "unsupported")
            measurements.put(probe_images=error)

    @torch.inference_mode()
    def _eager(self, pixels: npt.NDArray[np.uint8], shapes: Ints) -> torch.Tensor:
        """Return [images, d], computed one image at a time with the library's eager attention."""
        self._model.set_attn_implementation("eager")
        grids = (shapes // self._side).tolist()
        patches = torch.split(self._patches(pixels, grids), [rows * columns for rows, columns in grids])
        made = [
            self._parts(
                pixel_values=of_one[None],
                pixel_attention_mask=torch.ones(1, len(of_one), dtype=torch.long, device=self.device),
                spatial_shapes=torch.tensor([grid]),
            ).pooler_output
            for of_one, grid in zip(patches, grids, strict=True)
        ]
        return torch.cat(made)
