"""Preprocessing settings of images that are cut into square tiles, as in Idefics3."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.image_processor import ImagePlan, image_fields, resample, scaling
from sie_triton.checkpoints.resizing import EXACT, Resizing
from sie_triton.errors import LoadError

# Height and width, in pixels.
Size = tuple[int, int]

# Longest edge, in pixels, to which Idefics3 resizes an image.
MOST_PIXELS = 4096

# Rows or columns of tiles. Idefics3's vocabulary has tokens for 6.
MOST_TILES = 16


@dataclass(frozen=True, slots=True)
class TilePlan:
    """Preprocessing of images.

    An image is resized to a longest edge of `longest` pixels, then to sides that are multiples of a tile's, and cut
    into rows of tiles. A smaller copy of it, in the size of a tile, follows them.
    """

    longest: int
    tile: ImagePlan

    @classmethod
    def read(cls, directory: Path, vision: Fields) -> "TilePlan":
        """Read the settings; LoadError if they cannot be served. `vision`: of config.json, must have tiles' size."""
        fields = image_fields(directory, "Idefics3ImageProcessor", ("do_resize", "do_image_splitting"))
        longest = _longest_edge(fields, "size")
        side = _longest_edge(fields, "max_image_size")
        if vision.integer("image_size", 224) != side or longest > side * MOST_TILES:
            message = (
                f"{fields.where}: max_image_size: must be {vision.integer('image_size', 224)}, as image_size in "
                f"config.json, and at least 1/{MOST_TILES} of size"
            )
            raise LoadError(message, "unsupported")
        tile = ImagePlan(Resizing(EXACT, (side, side)), resample(fields), None, **scaling(fields))
        return cls(longest, tile)

    @property
    def side(self) -> int:
        """Height and width of a tile, in pixels."""
        return self.tile.shape[0]

    @property
    def most_tiles(self) -> int:
        """Maximum number of tiles of an image, with its smaller copy."""
        return ceil((self.longest + 1) / self.side) ** 2 + 1

    def sizes(self, height: int, width: int) -> tuple[Size, Size]:
        """Return height and width of an image after each of the two steps."""
        height, width = _scaled(self.longest, height, width, lambda short: max(1, short + short % 2))
        side = self.side
        most = ceil(max(height, width) / side) * side
        return (height, width), _scaled(most, height, width, lambda short: ceil(short / side) * side)


def _scaled(longest: int, height: int, width: int, rounded: Callable[[int], int]) -> Size:
    """Return the size with this longest edge and `rounded` shortest edge, by Idefics3's own operations."""
    aspect = width / height
    if width >= height:
        return rounded(int(longest / aspect)), longest
    return longest, rounded(int(longest * aspect))


def _longest_edge(fields: Fields, key: str) -> int:
    size = fields.fields(key)
    if set(size.values) != {"longest_edge"}:
        raise LoadError(f"{size.where}: must have longest_edge, and nothing else", "unsupported")
    return size.integer("longest_edge", least=1, most=MOST_PIXELS)
