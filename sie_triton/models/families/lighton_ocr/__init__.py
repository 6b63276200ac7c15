"""LightOnOCR: a page as markdown, without an instruction (Taghadouini et al., 2026).

page → shrunk → Pixtral's vision transformer → a state for four patches, within the prompt → Qwen3 → markdown
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor
from pathlib import Path

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import NESTED, Scaling, image_fields, resample, scaling
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.checkpoints.resizing import EXACT, form_of, size_fields
from sie_triton.contract import Part
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.base import Options
from sie_triton.models.families.shared.ocr import OcrFamily
from sie_triton.models.families.shared.ocr.prompt import OcrProcessor, Sizes
from sie_triton.models.inputs.chat_template import Message


@dataclass(frozen=True, slots=True)
class LongestEdgePlan(Scaling):
    """Preprocessing of images, which are shrunk if they are too large."""

    most: tuple[int, int]  # maximum height and width
    unit: tuple[int, int]  # height and width become multiples of these
    resample: int  # Pillow's number of the filter

    @classmethod
    def read(cls, directory: Path) -> "LongestEdgePlan":
        """Read the settings; raise LoadError naming the file that cannot be used."""
        fields = image_fields(directory, "PixtralImageProcessor")
        if fields.flag("do_center_crop", False):
            raise fields.unserved("do_center_crop true cannot be served")
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


MODEL_TYPE = "lighton_ocr"

# The second generation's config.json has this model type, although its weights have the names of its own class. Other
# models of this type generate text with Mistral.
OTHER_TYPE = "mistral3"


@dataclass(frozen=True, slots=True)
class LightOnFiles:
    """Files of a LightOnOCR model."""

    files: PageFiles
    plan: LongestEdgePlan
    patch: int  # side of a square of pixels, into which pages are cut
    # This number squared of them becomes a token; incomplete groups at the right and bottom edges are dropped
    merge: int

    @classmethod
    def read(cls, directory: Path) -> "LightOnFiles":
        files = PageFiles.read(directory, (MODEL_TYPE, OTHER_TYPE), longest=40_960)
        patch = files.vision.integer("patch_size", 14, least=1, most=LIMITS.max_image_side)
        merge = files.vlm.integer("spatial_merge_size", 2, least=1, most=64)
        settings = read_fields(directory / NESTED, required=False)
        for name, made in (("patch_size", patch), ("spatial_merge_size", merge)):
            if settings.integer(name, made) != made:
                raise settings.unserved(f"{name} is {settings.integer(name)}, but {files.vlm.where} reads {made}")
        plan = LongestEdgePlan.read(directory)
        if any(side % patch for side in plan.unit):
            raise files.vision.unserved(
                f"patch_size {patch}: must divide the sides of a page, multiples of {plan.unit}"
            )
        return cls(files, plan, patch, merge)

    def counts(self, height: int, width: int) -> tuple[int, int]:
        """Return the number of patches and of tokens in a page of this size, after resizing."""
        rows, columns = height // self.patch, width // self.patch
        return rows * columns, (rows // self.merge) * (columns // self.merge)


SYSTEM = "You are an OCR engine. Return the markdown representation of the document."


@dataclass(frozen=True)
class LightOnOcrOptions(Options):
    """Options of LightOnOCR. `system_prompt` is put before every page; it may be empty."""

    system_prompt: str = SYSTEM


class LightOnOcr(OcrFamily):
    options = LightOnOcrOptions
    reference_adapters = ("lighton_ocr:LightOnOCRAdapter",)

    def recognises(self, directory: Path) -> bool:
        model_type, _ = kind_of(directory)
        if model_type != OTHER_TYPE:
            return model_type == MODEL_TYPE
        text = read_fields(directory / "config.json").values.get("text_config")
        return isinstance(text, dict) and text.get("model_type") == "qwen3"

    @classmethod
    def read(cls, directory: Path) -> PageFiles:
        return LightOnFiles.read(directory).files


USUAL_NEW_TOKENS = 4096


class LightOnProcessor(OcrProcessor):
    def __init__(self, of: LightOnFiles, system: str, spec: ModelSpec) -> None:
        self._system = system
        super().__init__(of.files, Sizes(of.plan.size, of.counts, of.plan.resample), USUAL_NEW_TOKENS, spec)

    def conversation(self, part: Part) -> tuple[Sequence[Message], int]:
        content = [{"type": "image"}, *([{"type": "text", "text": part.instruction}] if part.instruction else [])]
        before = [{"role": "system", "content": self._system}] if self._system else []
        return [*before, {"role": "user", "content": content}], 0


def load_processor(spec: ModelSpec, directory: Path) -> LightOnProcessor:
    return LightOnProcessor(LightOnFiles.read(directory), LightOnOcrOptions.of(spec).system_prompt, spec)
