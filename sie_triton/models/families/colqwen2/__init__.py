"""ColQwen2 and ColQwen2.5: a page as an image at its own resolution, one small vector for each of its tokens.

image → resized → patches → vision transformer → a state for four patches, within the prompt → Qwen2-VL → projection
text → prefix, text, padding tokens → Qwen2-VL → projection → unit vectors

Positions are those of training: height and width in an image. ColQwen2ForRetrieval of transformers 5 numbers an image's
tokens one after another unless it is given positions.
"""

from pathlib import Path

from sie_triton.checkpoints.page_models import PageFiles, kind_of
from sie_triton.checkpoints.patch_plan import PatchPlan
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import LoadError
from sie_triton.models.families.shared.pages import PageFamily
from sie_triton.models.families.shared.pages.processor import (
    AUGMENTATION,
    PageForm,
    PageImages,
    PageProcessor,
    tokens_of,
    whole_tokenizer,
)
from sie_triton.models.inputs.patch_resizing import resized_for_patches

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


def load_processor(spec: ModelSpec, directory: Path) -> PageProcessor:
    files = ColQwen2.read(directory)
    plan, pad = PatchPlan.read(directory, files.vision), special_token(directory, "pad_token")
    prompt = files.settings.text("visual_prompt_prefix", IMAGE_PROMPT)
    after_text = pad * AUGMENTATION + ("" if is_of_engine(files) else "\n")
    return page_processor(spec, files, plan, prompt, (files.settings.text("query_prefix", "Query: "), after_text))


def page_processor(
    spec: ModelSpec,
    files: PageFiles,
    plan: PatchPlan,
    image_prompt: str,
    around_text: tuple[str, str],
    kind: type[PageProcessor] = PageProcessor,
) -> PageProcessor:
    """Make a processor of this kind; raise LoadError unless `image_prompt` has the token of an image exactly once."""
    tokenizer = whole_tokenizer(files.directory)
    prompt = tokens_of(tokenizer, image_prompt)
    if prompt.count(files.image_token) != 1:
        message = (
            f"{files.directory}: the prompt of images must contain the token {files.image_token}, which stands for "
            "them, exactly once"
        )
        raise LoadError(message, "unsupported")
    place = prompt.index(files.image_token)
    form = PageForm(
        before_text=around_text[0],
        after_text=around_text[1],
        before_image=prompt[:place],
        after_image=prompt[place + 1 :],
        image_token=files.image_token,
    )
    images = PageImages(
        lambda picture: resized_for_patches(picture, plan),
        lambda height, width: (plan.num_patches(height, width), plan.num_tokens(height, width)),
    )
    return kind(tokenizer, form, images, min(spec.max_sequence_length, files.longest), spec.runtime)
