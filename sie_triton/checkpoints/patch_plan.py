"""Preprocessing settings of images that are cut into patches at about their original size, as in Qwen's models."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.image_processor import BICUBIC, FILTERS, MAX_SIDE, image_fields, scaling
from sie_triton.errors import LoadError

# Defaults of Qwen2-VL.
USUAL: Mapping[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "temporal_patch_size": 2,
}

MOST_PIXELS = MAX_SIDE * MAX_SIDE


@dataclass(frozen=True, slots=True)
class PatchPlan:
    """Preprocessing of images.

    An image is resized, with Pillow's filter number `resample`, to sides that are multiples of `factor`, and to between
    `min_pixels` and `max_pixels`. Then it is cut into squares of `patch` pixels, of which `merge` · `merge` become a
    token. A pixel p becomes (p · scale - mean) / std. Each patch is repeated `frames` times, as if it were part of a
    video.
    """

    patch: int
    merge: int
    frames: int
    min_pixels: int
    max_pixels: int
    resample: int
    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @classmethod
    def read(cls, directory: Path, vision: Fields, usual: Mapping[str, Any] = USUAL) -> "PatchPlan":
        """Read the settings; raise LoadError if they cannot be served.

        `vision` is the tower's part of config.json, which must agree. `usual` holds the defaults of the processor's
        class.
        """
        fields = image_fields(directory, usual, ("do_resize", "do_rescale", "do_normalize"))
        least, most = _pixels(fields, usual["size"])
        plan = cls(
            patch=fields.integer("patch_size", 14, least=1, most=MAX_SIDE),
            merge=fields.integer("merge_size", 2, least=1, most=64),
            frames=fields.integer("temporal_patch_size", least=1, most=64),
            min_pixels=least,
            max_pixels=most,
            resample=fields.integer("resample", BICUBIC, most=FILTERS - 1),
            **scaling(fields),
        )
        for name, made in (
            ("patch_size", plan.patch),
            ("spatial_merge_size", plan.merge),
            ("temporal_patch_size", plan.frames),
        ):
            if vision.integer(name, made) != made:
                message = f"{vision.where}: {name} is {vision.integer(name)}, but {fields.where} makes {made}"
                raise LoadError(message, "unsupported")
        return plan

    @property
    def factor(self) -> int:
        return self.patch * self.merge

    @property
    def most_pixels(self) -> int:
        """Maximum pixels of a resized image.

        A narrow image may exceed `max_pixels`, since no side is shorter than `factor`.
        """
        longest = max(self.min_pixels, self.max_pixels)
        return longest + self.factor * (self.factor + 15 * isqrt(longest))

    def num_patches(self, height: int, width: int) -> int:
        """Return the number of patches in a resized image."""
        return (height // self.patch) * (width // self.patch)

    def num_tokens(self, height: int, width: int) -> int:
        """Return the number of tokens in a resized image."""
        return (height // self.factor) * (width // self.factor)


def _pixels(fields: Fields, usual: Mapping[str, int]) -> tuple[int, int]:
    """Return minimum and maximum pixels, from any of the keys that processors have used for them."""
    size = fields.fields("size")
    found = []
    for own, of_size in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        source, key = (fields, own) if fields.has(own) else (size, of_size if size.has(of_size) else own)
        found.append(source.integer(key, usual[of_size], least=1, most=MOST_PIXELS))
    least, most = found
    if least > most:
        raise LoadError(
            f"{fields.where}: the minimum of {least} pixels is larger than the maximum of {most}", "corrupt"
        )
    return least, most
