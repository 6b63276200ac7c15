"""ColQwen2 and ColQwen2.5: a page as an image at its own resolution, one small vector for each of its tokens.

image → resized → patches → vision transformer → a state for four patches, within the prompt → Qwen2-VL → projection
text → prefix, text, padding tokens → Qwen2-VL → projection → unit vectors

Positions are those of training: height and width in an image. ColQwen2ForRetrieval of transformers 5 numbers an image's
tokens one after another unless it is given positions.
"""

from pathlib import Path

from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, PIXELS, READ
from sie_triton.models.families.base import Recognised
from sie_triton.models.families.shared.pages import PageFamily

KINDS = ("qwen2_vl", "qwen2_5_vl")

# Classes of colpali-engine, in which these models were trained. A PEFT adapter merged into its base is saved under
# them.
OF_ENGINE = ("ColQwen2", "ColQwen2_5")

# The default prompt around an image.
IMAGE_PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"


class ColQwen2(PageFamily):
    features = (READ, INPUT_IDS, PIXELS, IMAGE_SIZES)
    takes_loras = True
    reference_adapters = ("colqwen2:ColQwen2Adapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        model_type, architecture = kind_of(directory)
        if model_type != "colqwen2" and not (model_type in KINDS and architecture in OF_ENGINE):
            return None
        files = read(directory)
        name = f"colqwen2 of {files.vlm.text('model_type', KINDS[0])}"
        return self.recognised(name, files, PatchPlan.read(directory, files.vision))

    def longest(self, directory: Path) -> int:
        return read(directory).longest


def is_of_engine(files: PageFiles) -> bool:
    return files.vlm.text("model_type", "") == kind_of(files.directory)[0]


def read(directory: Path) -> PageFiles:
    return PageFiles.read(directory, KINDS, longest=32768)
