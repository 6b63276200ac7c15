"""A transformers model of images of any shape as a function from bytes of pixels: patches of all in one row.

An image's positions are interpolated for its shape, and its patches attend to each other only: nothing is padded.
"""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from sie_triton.checkpoints.naflex import NaflexPlan
from sie_triton.engines.torch.attention import PACKED_ATTENTION, Segments, attending, choose_kernel
from sie_triton.engines.torch.attention_pooling import AttentionPooling
from sie_triton.engines.torch.probe import TOLERANCE, check_range, relative_error
from sie_triton.engines.torch.rows import spare_rows
from sie_triton.engines.torch.tower import Tower
from sie_triton.errors import LoadError
from sie_triton.measurements import Measurements

Ints = npt.NDArray[np.int32]

CHANNELS = 3

# Rows and columns of patches that are compared with the library; of a model that reads few, those it can.
COMPARED = ((1, 1), (2, 5), (7, 3), (5, 8))


class PackedVisionTower(Tower):
    """Of SigLIP 2. LoadError where it is not what the library computes.

    `image_bytes` are those of the largest image.
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
        """Whether bytes, and heights and widths in pixels, are of images as `plan` makes them."""
        patches = shapes // self._side
        whole = (shapes == patches * self._side).all() and (patches > 0).all()
        num_patches = patches[:, 0].astype(np.int64) * patches[:, 1]
        fits = (patches <= self._plan.max_num_patches).all() and (num_patches <= self._plan.max_num_patches).all()
        return bool(whole and fits and (lengths == num_patches * self._patch_bytes).all())

    @property
    def largest(self) -> tuple[int, int]:
        """Height and width in pixels of a square image, of about as many patches as there may be."""
        return self._plan.shape(1, 1)

    @torch.inference_mode()
    def vectors(self, pixels: npt.NDArray[np.uint8], shapes: Ints) -> torch.Tensor:
        """uint8 [bytes], int32 [images, 2] height and width in pixels → [images, d]."""
        grids = (shapes // self._side).tolist()
        lengths = [rows * columns for rows, columns in grids]
        packed = self._embedded(self._patches(pixels, grids), grids)
        num_patches = len(packed)
        spare = spare_rows(num_patches) if self.device.type == "cpu" else 0
        if spare:
            packed = torch.nn.functional.pad(packed, (0, 0, 0, spare))
        row = Segments.of([*lengths, *([spare] if spare else [])])
        with attending(row, self.kernel):
            states = self._parts.encoder(inputs_embeds=packed[None], attention_mask=None).last_hidden_state
        states = self._parts.post_layernorm(states[0, :num_patches])
        vectors: torch.Tensor = self._parts.head(states, Segments.of(lengths))
        return vectors

    def _patches(self, pixels: npt.NDArray[np.uint8], grids: list[list[int]]) -> torch.Tensor:
        """uint8 → [patches, numbers of a patch], scaled."""
        flat, side = torch.from_numpy(pixels).to(self.device), self._side
        ends = np.cumsum([0, *(rows * columns * self._patch_bytes for rows, columns in grids)]).tolist()
        images = [
            flat[start:end].view(rows, side, columns, side, CHANNELS).transpose(1, 2).reshape(-1, self._patch_bytes)
            for (start, end), (rows, columns) in zip(pairwise(ends), grids, strict=True)
        ]
        return (torch.cat(images).float() * self._scale - self._offset).to(self.dtype)

    def _embedded(self, patches: torch.Tensor, grids: list[list[int]]) -> torch.Tensor:
        """With the position of each in its image."""
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
        """Prepare it for speed; once, compare with what the library's eager attention makes of images one by one."""
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
                message = f"images of several shapes together differ from transformers' own by {error:.0e}"
                raise LoadError(message, "unsupported")
            measurements.put(probe_images=error)

    @torch.inference_mode()
    def _eager(self, pixels: npt.NDArray[np.uint8], shapes: Ints) -> torch.Tensor:
        """One image after another, by the library's plainest code: [images, d]."""
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
