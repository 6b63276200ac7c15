"""Image preprocessing settings of a checkpoint, as transformers' processors write them: size, crop and scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import Fields, has_file, is_number, read_fields
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.processor_classes import DEFAULTS, NULL_SIZES, OF_ONE_SIZE, RENAMED
from sie_triton.checkpoints.resizing import EXACT, KEPT, SHORTEST, Resizing, form_of, size_fields
from sie_triton.errors import LoadError

FILE, NESTED = "preprocessor_config.json", "processor_config.json"

# Parts of processor_config.json, by the key that names their class.
IMAGES, SOUNDS = "image_processor_type", "feature_extractor_type"
PARTS = {IMAGES: ("image_processor",), SOUNDS: ("feature_extractor", "audio_processor")}

# Number of Pillow's filters.
FILTERS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Normalisation of pixels, the last step of each plan: p becomes (p · scale - mean) / std."""

    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class ImagePlan(Scaling):
    """Preprocessing of images.

    An image is resized with Pillow's filter number `resample`. Then its center of size `crop`, height and width, is cut
    out.

    If the center lies between two pixels, the crop begins at the pixel before, or, with `rounds_middle`, at the even
    one, as in torchvision.
    """

    resizing: Resizing
    resample: int
    crop: tuple[int, int] | None
    rounds_middle: bool = False

    @classmethod
    def read(cls, directory: Path, usual: str) -> "ImagePlan":
        """Read the settings; raise LoadError if they cannot be served. `usual` is the default of the class."""
        fields = image_fields(directory, usual, ())
        resizing, crop = _steps(fields)
        if resizing.exact is None and crop is None:
            message = "size and do_resize: images of different sizes remain"
            raise fields.unserved(f"{message}, and do_center_crop does not cut them to one")
        plan = cls(resizing, resample(fields), crop, **scaling(fields))
        if fields.flag("do_pad", False) and fields.has("pad_size"):
            _check_padding(fields, plan.shape)
        return plan

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the images that the model reads."""
        shape = self.crop or self.resizing.exact
        assert shape is not None
        return shape


def image_fields(directory: Path, usual: str, needed: Sequence[str] = ("do_resize",)) -> Fields:
    """Read the image processor's settings over the defaults of its class, with that class under IMAGES.

    `usual` is the class if the files name none. Raise LoadError if the model cannot have the class, or if a `needed`
    step is off.
    """
    fields = processor_fields(directory, IMAGES, usual, OF_ONE_SIZE if usual in OF_ONE_SIZE else (usual,))
    for step in needed:
        if not fields.flag(step, False):
            raise fields.unserved(f"{step} false cannot be served; it must be true")
    return fields


def processor_fields(directory: Path, key: str, usual: str, known: Sequence[str]) -> Fields:
    """Read the settings of a processor, one of the `known` classes, over the defaults of its class.

    A null is a value: of a step, false.
    """
    found = _own_fields(directory, key)
    kind = _class(found, directory, key) or usual
    if kind not in known:
        raise found.unserved(f"{key} {kind[:80]!r} is unknown for this model; supported are {', '.join(known)}")
    values = {**found.values}
    for old, name in RENAMED.get(kind, {}).items():
        values[name] = values.get(old, values.get(name, DEFAULTS[kind][name]))
    if kind in NULL_SIZES and values.get("size") is None:
        values.pop("size", None)
    of_steps = {name: False for name, value in values.items() if value is None and name.startswith("do_")}
    return Fields(found.where, {**DEFAULTS[kind], **values, **of_steps, key: kind})


def _own_fields(directory: Path, key: str) -> Fields:
    """Read the file of the whole processor if it has the part, as transformers writes it since version 5; else FILE."""
    nested = read_fields(directory / NESTED, required=False)
    part = next((part for part in PARTS[key] if part in nested.values), "")
    if nested.has(part):
        return nested.fields(part)
    if not has_file(directory / FILE):
        parts = " and ".join(PARTS[key])
        message = f"{FILE} is missing in {directory}, and so is {parts} in {NESTED}"
        raise LoadError(message, "not found")
    return read_fields(directory / FILE)


def _class(fields: Fields, directory: Path, key: str) -> str:
    """Return the class that the files name, without the suffix of its backend; empty if they name none."""
    name = fields.text(key, "")
    if not name and key == IMAGES and "AutoImageProcessor" not in fields.fields("auto_map").values:
        name = fields.text(SOUNDS, "").replace("FeatureExtractor", "ImageProcessor")
    name = name or read_fields(directory / "config.json", required=False).text(key, "")
    return name.removesuffix("Fast").removesuffix("Pil")


def _steps(fields: Fields) -> tuple[Resizing, tuple[int, int] | None]:
    """Return how images are resized, and the height and width to which they are cropped."""
    is_resized, is_cropped = fields.flag("do_resize", False), fields.flag("do_center_crop", False)
    crop = _height_and_width(fields, "crop_size") if is_cropped else None
    if not is_resized:
        return Resizing(KEPT, ()), crop
    if fields.flag("use_square_size", False) and fields.text(IMAGES) == "CLIPImageProcessor":
        side = DEFAULTS["CLIPImageProcessor"]["size"]["shortest_edge"]
        return Resizing(EXACT, (side, side)), crop
    if fields.text(IMAGES) == "ConvNextImageProcessor":
        return _of_convnext(fields, crop)
    return Resizing.read(fields), crop


def _of_convnext(fields: Fields, crop: tuple[int, int] | None) -> tuple[Resizing, tuple[int, int] | None]:
    """Return ConvNext's steps: short edges are resized to 1 / crop_pct of their length, then cropped to it."""
    (edge,) = Resizing.read(fields, (SHORTEST,)).values
    if edge >= 384:  # smaller ones are cropped
        return Resizing(EXACT, (edge, edge)), crop
    if crop is not None:
        raise fields.unserved("do_center_crop true cannot be served with crop_pct")
    share = fields.number("crop_pct")
    longer = edge / share if share > 0 else 0
    if not 1 <= longer <= LIMITS.max_image_side:
        raise fields.corrupt(f"crop_pct: must make edges of 1 to {LIMITS.max_image_side} pixels")
    return Resizing(SHORTEST, (int(longer),)), (edge, edge)


def _height_and_width(fields: Fields, key: str) -> tuple[int, int]:
    size = size_fields(fields, key, to_square=True)
    form_of(size, (EXACT,))
    height, width = (size.integer(name, least=1, most=LIMITS.max_image_side) for name in EXACT)
    return height, width


def _check_padding(fields: Fields, shape: tuple[int, int]) -> None:
    if fields.text(IMAGES) != "ConvNextImageProcessor" and _height_and_width(fields, "pad_size") != shape:
        raise fields.unserved(f"pad_size cannot be served: images are {shape[0]} × {shape[1]} without padding")


def resample(fields: Fields) -> int:
    """Return the number of Pillow's filter."""
    return fields.integer("resample", most=FILTERS - 1)


def scaling(fields: Fields) -> dict[str, Any]:
    """Return the arguments of Scaling."""
    is_normal = fields.flag("do_normalize", False)
    std = three(fields, "image_std") if is_normal else (1.0, 1.0, 1.0)
    if not all(std):
        raise fields.corrupt("image_std: must not be 0")
    return {
        "scale": fields.number("rescale_factor") if fields.flag("do_rescale", False) else 1.0,
        "mean": three(fields, "image_mean") if is_normal else (0.0, 0.0, 0.0),
        "std": std,
    }


def three(fields: Fields, key: str) -> tuple[float, float, float]:
    """Return three numbers, for red, green and blue."""
    value = fields.values.get(key)
    values = [value] * 3 if is_number(value) else value
    if not isinstance(values, list) or len(values) != 3 or not all(map(is_number, values)):
        raise fields.corrupt(f"{key}: must be three numbers (given {value!r:.80})")
    red, green, blue = map(float, values)
    return red, green, blue
