"""Preprocessing settings of images of any shape that become patches, as SigLIP 2's processor writes them."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path

from sie_triton.checkpoints.image_processor import FILTERS, Scaling, image_fields, scaling
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.processor_classes import BILINEAR


@dataclass(frozen=True, slots=True)
class NaflexPlan(Scaling):
    """Preprocessing of images, which keep their aspect ratio and are resized to as many whole patches as fit."""

    patch_size: int  # side of a patch, in pixels
    max_num_patches: int
    resample: int  # Pillow's number of the filter

    @classmethod
    def read(cls, directory: Path) -> "NaflexPlan":
        """Read the settings; raise LoadError if they cannot be served."""
        fields = image_fields(directory, "Siglip2ImageProcessor")
        return cls(
            patch_size=fields.integer("patch_size", least=1, most=LIMITS.max_image_side),
            max_num_patches=fields.integer("max_num_patches", least=1, most=100_000),
            resample=fields.integer("resample", BILINEAR, most=FILTERS - 1),
            **scaling(fields),
        )

    def shape(self, height: int, width: int) -> tuple[int, int]:
        """Return the height and width, in pixels, to which an image is resized: at most `max_num_patches` patches.

        >>> plan = NaflexPlan(16, 256, 2, scale=1 / 255, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        >>> plan.shape(300, 300), plan.shape(10, 5), plan.shape(1, 200)
        ((256, 256), (352, 176), (16, 3200))
        """
        rows, columns = self._grid(height, width)
        return rows * self.patch_size, columns * self.patch_size

    def num_patches(self, height: int, width: int) -> int:
        """Return the number of patches in a resized image of that many pixels."""
        return height // self.patch_size * (width // self.patch_size)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        def at(scale: float) -> tuple[int, int]:
            rows, columns = (max(1, ceil(side * scale / self.patch_size)) for side in (height, width))
            return rows, columns

        low, high = 1e-6, 100.0
        while high - low >= 1e-5:
            scale = (low + high) / 2
            rows, columns = at(scale)
            if rows * columns <= self.max_num_patches:
                low = scale
            else:
                high = scale
        return at(low)
