"""Preprocessing settings of images that are shrunk until they fit, then cut into patches, as in Pixtral."""

from dataclasses import dataclass
from math import floor
from pathlib import Path

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.image_processor import image_fields, resample, scaling
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.resizing import EXACT, form_of, size_fields
from sie_triton.errors import LoadError


@dataclass(frozen=True, slots=True)
class LongestEdgePlan:
    """Preprocessing of images.

    An image is shrunk, with Pillow's filter number `resample`, until it is within `most`, height and width. Its sides
    become multiples of `unit`, height and width. A pixel p becomes (p · scale - mean) / std.
    """

    most: tuple[int, int]
    unit: tuple[int, int]
    resample: int
    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @classmethod
    def read(cls, directory: Path) -> "LongestEdgePlan":
        """Read the settings; raise LoadError naming the file that cannot be used."""
        fields = image_fields(directory, "PixtralImageProcessor")
        if fields.flag("do_center_crop", False):
            raise LoadError(f"{fields.where}: do_center_crop true cannot be served", "unsupported")
        return cls(
            most=_sides(size_fields(fields, "size"), (("longest_edge",), EXACT)),
            unit=_sides(size_fields(fields, "patch_size", to_square=True), (EXACT,)),
            resample=resample(fields),
            **scaling(fields),
        )

    @property
    def most_pixels(self) -> int:
        (height, width), (rows, columns) = self.most, self.unit
        return (height + rows) * (width + columns)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width, after resizing, of an image of this size."""
        shrunk = max(height / self.most[0], width / self.most[1])
        if shrunk > 1:
            height, width = max(1, floor(height / shrunk)), max(1, floor(width / shrunk))
        rows, columns = self.unit
        return ((height - 1) // rows + 1) * rows, ((width - 1) // columns + 1) * columns


def _sides(size: Fields, supported: tuple[tuple[str, ...], ...]) -> tuple[int, int]:
    """Return height and width, which are equal in a size with a single key."""
    found = [size.integer(key, least=1, most=LIMITS.max_image_side) for key in form_of(size, supported)]
    return found[0], found[-1]
