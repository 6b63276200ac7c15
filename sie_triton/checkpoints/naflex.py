"""What a checkpoint says of how images of any shape become patches, as SigLIP 2's processor writes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.image_processor import FILTERS, MAX_SIDE, image_fields, scaling

MAX_PATCHES = 100_000

# Where the library looks for the scale of an image, and how closely.
SCALES, CLOSE = (1e-6, 100.0), 1e-5


@dataclass(frozen=True, slots=True)
class NaflexPlan:
    """An image keeps its shape: it is resized to as many whole patches of `patch_size` pixels a side as there may be,
    `max_num_patches`. A pixel p becomes (p · scale - mean) / std.
    """

    patch_size: int
    max_num_patches: int
    resample: int
    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @classmethod
    def read(cls, directory: Path, usual: Mapping[str, Any]) -> "NaflexPlan":
        """`usual`: what the processor's class has where the file says nothing. LoadError."""
        fields = image_fields(directory, usual, ("do_resize", "do_rescale", "do_normalize"))
        return cls(
            patch_size=fields.integer("patch_size", least=1, most=MAX_SIDE),
            max_num_patches=fields.integer("max_num_patches", least=1, most=MAX_PATCHES),
            resample=fields.integer("resample", most=FILTERS - 1),
            **scaling(fields),
        )

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """What an image of that many pixels is resized to; it has no more than `max_num_patches`.

        >>> plan = NaflexPlan(16, 256, 2, 1 / 255, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        >>> plan.shape(300, 300), plan.shape(10, 5), plan.shape(1, 200)
        ((256, 256), (352, 176), (16, 3200))
        """
        rows, columns = self._grid(height, width)
        return rows * self.patch_size, columns * self.patch_size

    def num_patches(self, height: int, width: int) -> int:
        """Of an image that has been resized to that many pixels."""
        return height // self.patch_size * (width // self.patch_size)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        def at(scale: float) -> tuple[int, int]:
            rows, columns = (max(1, ceil(side * scale / self.patch_size)) for side in (height, width))
            return rows, columns

        low, high = SCALES
        while high - low >= CLOSE:
            scale = (low + high) / 2
            rows, columns = at(scale)
            if rows * columns <= self.max_num_patches:
                low = scale
            else:
                high = scale
        return at(low)
