"""ColQwen2 and ColQwen2.5: a page as an image at its own resolution, one small vector for each of its tokens.

image → resized → patches → vision transformer → a state for four patches, within the prompt → Qwen2-VL → projection
text → prefix, text, padding tokens → Qwen2-VL → projection → unit vectors

Positions are those of training: height and width in an image. ColQwen2ForRetrieval of transformers 5 numbers an image's
tokens one after another unless it is given positions.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from sie_triton.checkpoints.page_models import PageFiles, kind_of, special_token
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.contract.tensors import IMAGE_SIZES, INPUT_IDS, PIXELS, READ
from sie_triton.errors import LoadError
from sie_triton.families.base import Adapter, Recognised
from sie_triton.families.shared.pages.family import PageFamily
from sie_triton.inputs import Processor
from sie_triton.spec import ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines.torch.engine import TorchEngine

LONGEST = 32768
KINDS = ("qwen2_vl", "qwen2_5_vl")

# Classes of colpali-engine, in which these models were trained. A PEFT adapter merged into its base is saved under
# them.
OF_ENGINE = ("ColQwen2", "ColQwen2_5")

# The default prompt around an image.
IMAGE_PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"

# Height and width of a page for measuring, in pixels. Small: a larger one costs proportionally more, and takes minutes
# on a CPU.
PAGE = (448, 336)


class ColQwen2(PageFamily):
    features = (READ, INPUT_IDS, PIXELS, IMAGE_SIZES)
    takes_loras = True
    reference_adapters = ("colqwen2:ColQwen2Adapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        model_type, architecture = kind_of(directory)
        if model_type != "colqwen2" and not (model_type in KINDS and architecture in OF_ENGINE):
            return None
        files = self.read(directory)
        plan = PatchPlan.read(directory, files.vision)
        most = plan.max_pixels // plan.factor**2
        reason = f"config.json: colqwen2 of {files.vlm.text('model_type', KINDS[0])}, images of at most {most} tokens"
        return Recognised(reason, files.longest, {"multivector": files.dim}, scores=True, weights=(directory,))

    def read(self, directory: Path) -> PageFiles:
        return PageFiles.read(directory, KINDS, LONGEST)

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        from sie_triton.families.shared.pages.processor import (
            AUGMENTATION,
            PageForm,
            PageImages,
            PageProcessor,
            tokens_of,
            whole_tokenizer,
        )
        from sie_triton.inputs.patch_resizing import resized_for_patches

        files = self.read(directory)
        plan = PatchPlan.read(directory, files.vision)
        tokenizer, pad = whole_tokenizer(directory), special_token(directory, "pad_token")
        prompt = tokens_of(tokenizer, files.settings.text("visual_prompt_prefix", IMAGE_PROMPT))
        if prompt.count(files.image_token) != 1:
            message = (
                f"{directory}: the prompt of images must contain the token {files.image_token}, which stands for "
                "them, exactly once"
            )
            raise LoadError(message, "unsupported")
        place = prompt.index(files.image_token)
        form = PageForm(
            before_text=files.settings.text("query_prefix", "Query: "),
            after_text=pad * AUGMENTATION + ("" if is_of_engine(files) else "\n"),
            before_image=prompt[:place],
            after_image=prompt[place + 1 :],
            image_token=files.image_token,
        )
        images = PageImages(
            lambda picture: resized_for_patches(picture, plan),
            lambda height, width: (plan.num_patches(height, width), plan.num_tokens(height, width)),
        )
        return PageProcessor(tokenizer, form, images, min(spec.max_sequence_length, files.longest), spec.runtime)

    def load(self, spec: ModelSpec, directory: Path, engine: "TorchEngine") -> Adapter:
        from sie_triton.families.colqwen2.adapter import load
        from sie_triton.inputs.patch_resizing import patched_size

        files = self.read(directory)
        plan = PatchPlan.read(directory, files.vision)
        return load(files, plan, self.page(spec, directory, patched_size(*PAGE, plan)), engine)


def is_of_engine(files: PageFiles) -> bool:
    return files.vlm.text("model_type", "") == kind_of(files.directory)[0]
