"""ColQwen2 and ColQwen2.5: a page as an image at its own resolution, one small vector for each of its tokens.

image → resized → patches → vision transformer → a state for four patches, within the prompt → Qwen2-VL → projection
text → prefix, text, padding tokens → Qwen2-VL → projection → unit vectors

Positions are those of training: height and width in an image. ColQwen2ForRetrieval of transformers 5 numbers an image's
tokens one after another unless it is given positions.
"""

from pathlib import Path

from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.models.families.shared.pages import PageFamily

# Classes of colpali-engine, in which these models were trained. A PEFT adapter merged into its base is saved under
# them.
OF_ENGINE = ("ColQwen2", "ColQwen2_5")

# The default prompt around an image.
IMAGE_PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"


class ColQwen2(PageFamily):
    model_types = ("qwen2_vl", "qwen2_5_vl")
    usual_longest = 32_768
    takes_loras = True
    reference_adapters = ("colqwen2:ColQwen2Adapter",)

    def recognises(self, directory: Path) -> bool:
        model_type, architecture = kind_of(directory)
        return model_type == "colqwen2" or (model_type in self.model_types and architecture in OF_ENGINE)

    def described(self, files: PageFiles) -> str:
        most = PatchPlan.read(files.directory, files.vision).max_tokens
        return f"colqwen2 of {files.vlm.text('model_type', self.model_types[0])}, images of at most {most} tokens"


def is_of_engine(files: PageFiles) -> bool:
    return files.vlm.text("model_type", "") == kind_of(files.directory)[0]
