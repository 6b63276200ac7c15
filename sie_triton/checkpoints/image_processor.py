"""Image preprocessing settings of a checkpoint, as transformers' processors write them: size, crop and scale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from sie_triton.checkpoints.files import Fields, has_file, read_fields
from sie_triton.errors import LoadError

FILE, NESTED = "preprocessor_config.json", "processor_config.json"

# Pillow's numbers for its filters.
BILINEAR, BICUBIC = 2, 3
FILTERS = 6

MAX_SIDE = 8192


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """Preprocessing of images.

    An image is resized to `size`, height and width, or until its shorter edge is `shortest_edge`, with Pillow's filter
    number `resample`. Then its center of size `crop` is cut out. A pixel p becomes (p · scale - mean) / std.

    If the center lies between two pixels, the crop begins at the pixel before, or, with `rounds_middle`, at the even
    one, as in torchvision.
    """

    size: tuple[int, int] | None
    shortest_edge: int
    resample: int
    crop: tuple[int, int] | None
    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    rounds_middle: bool = False

    @classmethod
    def read(cls, directory: Path, usual: Mapping[str, Any]) -> "ImagePlan":
        """Read the settings over `usual`, the defaults of the processor's class; LoadError if they cannot be served."""
        fields = image_fields(directory, usual)
        size, shortest = _size(fields, "size")
        crop = _size(fields, "crop_size", squares=True)[0] if fields.flag("do_center_crop", False) else None
        if size is None and crop is None:
            message = (
                f"{fields.where}: size: gives images of different sizes, and do_center_crop does not cut them to one"
            )
            raise LoadError(message, "unsupported")
        return cls(
            size=size,
            shortest_edge=shortest,
            resample=fields.integer("resample", BICUBIC, most=FILTERS - 1),
            crop=crop,
            **scaling(fields),
        )

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the images that the model reads."""
        shape = self.crop or self.size
        assert shape is not None
        return shape


class Scaling(TypedDict):
    """A pixel p becomes (p · scale - mean) / std."""

    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def image_fields(directory: Path, usual: Mapping[str, Any], needed: Sequence[str] = ("do_resize",)) -> Fields:
    """Read the image processor's settings over the defaults `usual`; raise LoadError if a `needed` step is off."""
    found = processor_fields(directory)
    fields = Fields(found.where, {**usual, **{key: value for key, value in found.values.items() if value is not None}})
    for step in needed:
        if not fields.flag(step, True):
            raise LoadError(
                f"{fields.where}: {step} false cannot be served: images of all sizes must be accepted", "unsupported"
            )
    return fields


def scaling(fields: Fields) -> Scaling:
    is_normal = fields.flag("do_normalize", True)
    return Scaling(
        scale=number(fields, "rescale_factor", 1 / 255) if fields.flag("do_rescale", True) else 1.0,
        mean=three(fields, "image_mean") if is_normal else (0.0, 0.0, 0.0),
        std=three(fields, "image_std") if is_normal else (1.0, 1.0, 1.0),
    )


def processor_fields(directory: Path, part: str = "image_processor") -> Fields:
    """Read the settings of the image processor, or of another `part`.

    They are in a file of their own or, as transformers writes them since version 5, in that of the whole processor.
    """
    if has_file(directory / FILE):
        return read_fields(directory / FILE)
    nested = read_fields(directory / NESTED, required=False)
    if not nested.has(part):
        raise LoadError(f"{FILE} is missing in {directory}", "not found")
    return nested.fields(part)


def number(fields: Fields, key: str, default: float | None = None) -> float:
    value = fields.values.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise LoadError(f"{fields.where}: {key}: must be a number (given {value!r:.80})", "corrupt")
    return float(value)


def three(fields: Fields, key: str) -> tuple[float, float, float]:
    """Return three numbers, for red, green and blue."""
    value = fields.values.get(key)
    values = [value] * 3 if isinstance(value, (int, float)) else value
    if not isinstance(values, list) or len(values) != 3 or not all(isinstance(each, (int, float)) for each in values):
        raise LoadError(f"{fields.where}: {key}: must be three numbers (given {value!r:.80})", "corrupt")
    red, green, blue = map(float, values)
    return red, green, blue


def _size(fields: Fields, key: str, *, squares: bool = False) -> tuple[tuple[int, int] | None, int]:
    """Return height and width, or None and the length of the shorter edge.

    A list is height and width. A single number is the shorter edge or, with `squares`, both sides.
    """
    value = fields.values.get(key)
    if isinstance(value, (int, float)):
        side = fields.integer(key, least=1, most=MAX_SIDE)
        return ((side, side), 0) if squares else (None, side)
    if isinstance(value, list) and len(value) == 2:
        value = {"height": value[0], "width": value[1]}
    found = Fields.of(f"{fields.where}: {key}", value or {})
    if found.has("shortest_edge") and not found.has("longest_edge"):
        return None, found.integer("shortest_edge", least=1, most=MAX_SIDE)
    return (
        found.integer("height", least=1, most=MAX_SIDE),
        found.integer("width", least=1, most=MAX_SIDE),
    ), 0
