"""What a LightOnOCR checkpoint says: how its pages are made, and how many tokens one becomes."""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.image_processor import MAX_SIDE, NESTED
from sie_triton.checkpoints.longest_edge import LongestEdgePlan
from sie_triton.checkpoints.pages import PageFiles, kind_of
from sie_triton.errors import LoadError

MODEL_TYPE = "lighton_ocr"

# What the second generation's config.json calls itself, though its weights have the names of its own class. The
# models of that name write with Mistral.
OTHER_TYPE, OTHER_WRITER = "mistral3", "qwen3"

LONGEST = 40_960


@dataclass(frozen=True, slots=True)
class LightOnFiles:
    """Pages are made as `plan` says and cut into squares of `patch` pixels, `merge` · `merge` of which become a token;
    those of them that are left over at the right and the bottom become none.
    """

    files: PageFiles
    plan: LongestEdgePlan
    patch: int
    merge: int

    @classmethod
    def read(cls, directory: Path) -> "LightOnFiles":
        """LoadError names the file that cannot be used."""
        files = PageFiles.read(directory, (MODEL_TYPE, OTHER_TYPE), LONGEST)
        patch = files.vision.integer("patch_size", 14, least=1, most=MAX_SIDE)
        merge = files.vlm.integer("spatial_merge_size", 2, least=1, most=64)
        settings = read_fields(directory / NESTED, required=False)
        for name, made in (("patch_size", patch), ("spatial_merge_size", merge)):
            if settings.integer(name, made) != made:
                message = f"{settings.where}: {name} {settings.integer(name)}, and {files.vlm.where} reads {made}"
                raise LoadError(message, "unsupported")
        plan = LongestEdgePlan.read(directory)
        if any(side % patch for side in plan.unit):
            message = f"{files.vision.where}: patch_size {patch}: pages have sides in steps of {plan.unit}"
            raise LoadError(message, "unsupported")
        return cls(files, plan, patch, merge)

    def counts(self, height: int, width: int) -> tuple[int, int]:
        """Patches and tokens of a page of this size, as it is read."""
        rows, columns = height // self.patch, width // self.patch
        return rows * columns, (rows // self.merge) * (columns // self.merge)


def is_lighton_ocr(directory: Path) -> bool:
    model_type, _ = kind_of(directory)
    if model_type != OTHER_TYPE:
        return model_type == MODEL_TYPE
    text = read_fields(directory / "config.json").values.get("text_config")
    return isinstance(text, dict) and text.get("model_type") == OTHER_WRITER
