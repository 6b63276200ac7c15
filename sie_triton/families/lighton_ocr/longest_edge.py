"""Preprocessing settings of images that are shrunk until they fit, then cut into patches, as in Pixtral."""

from dataclasses import dataclass
from math import floor
from pathlib import Path

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.image_processor import BICUBIC, FILTERS, MAX_SIDE, image_fields, scaling
from sie_triton.checkpoints.patch_plan import USUAL
from sie_triton.errors import LoadError

USUAL_SIZE = {"longest_edge": 1024}
USUAL_PATCH = 16


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
        usual = {**USUAL, "size": USUAL_SIZE, "patch_size": USUAL_PATCH}
        fields = image_fields(directory, usual, ("do_resize", "do_rescale", "do_normalize"))
        if fields.flag("do_center_crop", False):
            raise LoadError(f"{fields.where}: do_center_crop true cannot be served", "unsupported")
        return cls(
            most=_sides(fields, "size", "longest_edge"),
            unit=_sides(fields, "patch_size"),
            resample=fields.integer("resample", BICUBIC, most=FILTERS - 1),
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


def _sides(fields: Fields, key: str, both: str = "") -> tuple[int, int]:
    """Return height and width: from a number, an object with both, or an object with the single key `both`."""
    if isinstance(fields.values[key], int):
        side = fields.integer(key, least=1, most=MAX_SIDE)
        return side, side
    found = fields.fields(key)
    names = (both, both) if both and found.has(both) else ("height", "width")
    height, width = (found.integer(name, least=1, most=MAX_SIDE) for name in names)
    return height, width
