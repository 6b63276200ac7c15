"""Preprocessing settings of images that are cut into patches at about their original size, as in Qwen's models."""

from dataclasses import dataclass
from math import isqrt
from pathlib import Path

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.image_processor import IMAGES, Scaling, image_fields, resample, scaling
from sie_triton.checkpoints.limits import LIMITS


@dataclass(frozen=True, slots=True)
class PatchPlan(Scaling):
    """Preprocessing of images: resized to sides that are multiples of `factor`, then cut into squares, the patches."""

    patch: int  # side of a patch, in pixels
    merge: int  # this number squared of patches become a token
    frames: int  # repetitions of each patch, as if it were part of a video
    min_pixels: int  # of a resized image
    max_pixels: int
    resample: int  # Pillow's number of the filter

    @classmethod
    def read(cls, directory: Path, vision: Fields, usual: str = "Qwen2VLImageProcessor") -> "PatchPlan":
        """Read the settings; raise LoadError if they cannot be served.

        `vision` is the tower's part of config.json, which must agree. `usual` is the processor's class.
        """
        fields = image_fields(directory, usual)
        least, most = _pixels(fields)
        plan = cls(
            patch=fields.integer("patch_size", least=1, most=LIMITS.max_image_side),
            merge=fields.integer("merge_size", least=1, most=64),
            frames=fields.integer("temporal_patch_size", least=1, most=64),
            min_pixels=least,
            max_pixels=most,
            resample=resample(fields),
            **scaling(fields),
        )
        for name, made in (
            ("patch_size", plan.patch),
            ("spatial_merge_size", plan.merge),
            ("temporal_patch_size", plan.frames),
        ):
            if vision.integer(name, made) != made:
                raise vision.unserved(f"{name} is {vision.integer(name)}, but {fields.where} makes {made}")
        return plan

    @property
    def factor(self) -> int:
        return self.patch * self.merge

    @property
    def max_tokens(self) -> int:
        """Number of tokens of an image of `max_pixels`."""
        return self.max_pixels // self.factor**2

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


def _pixels(fields: Fields) -> tuple[int, int]:
    """Return minimum and maximum pixels, from any of the keys that processors have used for them."""
    size = fields.fields("size")
    found = []
    for own, of_size in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        is_own = fields.has(own) and fields.text(IMAGES) != "Glm46VImageProcessor"
        source, key = (fields, own) if is_own else (size, own if size.has(own) else of_size)
        found.append(source.integer(key, least=1, most=LIMITS.max_image_side * LIMITS.max_image_side))
    least, most = found
    if least > most:
        raise fields.corrupt(f"the minimum of {least} pixels is larger than the maximum of {most}")
    return least, most
