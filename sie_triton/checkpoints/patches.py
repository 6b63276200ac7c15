"""What a checkpoint says of images that are cut into patches at about their own size, as Qwen's models read them."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isqrt
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.image_processor import BICUBIC, FILTERS, MAX_SIDE, image_fields, scaling
from sie_triton.errors import LoadError

# Of Qwen2-VL, where the file says nothing.
USUAL: Mapping[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    "temporal_patch_size": 2,
}

MOST_PIXELS = MAX_SIDE * MAX_SIDE


@dataclass(frozen=True, slots=True)
class PatchPlan:
    """An image is resized, with Pillow's filter number `resample`, to sides that are multiples of `factor` and to
    between `min_pixels` and `max_pixels`; then cut into squares of `patch` pixels, of which `merge` · `merge` become a
    token. A pixel p becomes (p · scale - mean) / std, and a patch is seen `frames` times, as if it were of a film.
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
        """`vision`: what config.json says of the tower, which must read such patches; `usual`: what the processor's
        class has where its file says nothing. LoadError.
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
                message = f"{vision.where}: {name} {vision.integer(name)}, and {fields.where} makes {made}"
                raise LoadError(message, "unsupported")
        return plan

    @property
    def factor(self) -> int:
        return self.patch * self.merge

    @property
    def most_pixels(self) -> int:
        """Of a resized image: a narrow one may be larger than `max_pixels`, as no side is less than `factor`."""
        longest = max(self.min_pixels, self.max_pixels)
        return longest + self.factor * (self.factor + 15 * isqrt(longest))

    def num_patches(self, height: int, width: int) -> int:
        """Of a resized image."""
        return (height // self.patch) * (width // self.patch)

    def num_tokens(self, height: int, width: int) -> int:
        """Of a resized image."""
        return (height // self.factor) * (width // self.factor)


def _pixels(fields: Fields, usual: Mapping[str, int]) -> tuple[int, int]:
    """Least and most, of the keys that processors have had for them."""
    size = fields.fields("size")
    found = []
    for own, of_size in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        source, key = (fields, own) if fields.has(own) else (size, of_size if size.has(of_size) else own)
        found.append(source.integer(key, usual[of_size], least=1, most=MOST_PIXELS))
    least, most = found
    if least > most:
        raise LoadError(f"{fields.where}: at least {least} pixels and at most {most}: no image has both", "corrupt")
    return least, most
