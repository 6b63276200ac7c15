"""Files of a LightOnOCR checkpoint: page preprocessing, and the number of tokens in a page."""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.image_processor import NESTED
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.errors import LoadError
from sie_triton.models.families.lighton_ocr.longest_edge import LongestEdgePlan

MODEL_TYPE = "lighton_ocr"

# The second generation's config.json has this model type, although its weights have the names of its own class. Other
# models of this type generate text with Mistral.
OTHER_TYPE, OTHER_WRITER = "mistral3", "qwen3"

LONGEST = 40_960


@dataclass(frozen=True, slots=True)
class LightOnFiles:
    """Files of a LightOnOCR model.

    Pages are resized as `plan` says, then cut into squares of `patch` pixels. `merge` · `merge` of these become a
    token; incomplete groups at the right and bottom edges are dropped.
    """

    files: PageFiles
    plan: LongestEdgePlan
    patch: int
    merge: int

    @classmethod
    def read(cls, directory: Path) -> "LightOnFiles":
        files = PageFiles.read(directory, (MODEL_TYPE, OTHER_TYPE), LONGEST)
        patch = files.vision.integer("patch_size", 14, least=1, most=LIMITS.max_image_side)
        merge = files.vlm.integer("spatial_merge_size", 2, least=1, most=64)
        settings = read_fields(directory / NESTED, required=False)
        for name, made in (("patch_size", patch), ("spatial_merge_size", merge)):
            if settings.integer(name, made) != made:
                message = f"{settings.where}: {name} is {settings.integer(name)}, but {files.vlm.where} reads {made}"
                raise LoadError(message, "unsupported")
        plan = LongestEdgePlan.read(directory)
        if any(side % patch for side in plan.unit):
            message = (
                f"{files.vision.where}: patch_size {patch}: must divide the sides of a page, multiples of {plan.unit}"
            )
            raise LoadError(message, "unsupported")
        return cls(files, plan, patch, merge)

    def counts(self, height: int, width: int) -> tuple[int, int]:
        """Return the number of patches and of tokens in a page of this size, after resizing."""
        rows, columns = height // self.patch, width // self.patch
        return rows * columns, (rows // self.merge) * (columns // self.merge)


def is_lighton_ocr(directory: Path) -> bool:
    model_type, _ = kind_of(directory)
    if model_type != OTHER_TYPE:
        return model_type == MODEL_TYPE
    text = read_fields(directory / "config.json").values.get("text_config")
    return isinstance(text, dict) and text.get("model_type") == OTHER_WRITER
