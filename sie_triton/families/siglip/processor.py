"""SigLIP's texts → tokens, padded to the checkpoint's length, and images → pixels. No torch."""

from functools import partial
from pathlib import Path

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.families.shared.towers.processor import TowerProcessor
from sie_triton.families.siglip.files import SiglipFiles
from sie_triton.inputs.cleaning import cleaning
from sie_triton.inputs.pixels import resized, resized_for_patches
from sie_triton.inputs.tokenizer import open_tokenizer, padding, truncating
from sie_triton.spec import ModelSpec


def load_processor(spec: ModelSpec, directory: Path) -> TowerProcessor:
    """Load the processor; raise LoadError saying what is wrong with its files.

    Texts are truncated to the model file's limit, then padded to the checkpoint's length.
    """
    files = SiglipFiles.read(directory)
    texts, plan = files.texts, files.plan
    tokenizer = truncating(open_tokenizer(files.directory), min(spec.max_sequence_length, texts.length))
    padding(tokenizer, texts.length, texts.token, texts.on_left)
    cleaning(tokenizer, texts.cleaning)
    if isinstance(plan, ImagePlan):
        return TowerProcessor(tokenizer, partial(resized, plan=plan), lambda _: files.num_patches, spec.runtime)
    resize = partial(resized_for_patches, plan=plan)
    return TowerProcessor(tokenizer, resize, lambda pixels: plan.num_patches(*pixels.shape[:2]), spec.runtime)
