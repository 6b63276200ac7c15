"""SigLIP's texts → tokens, padded to the checkpoint's length, and images → pixels. No torch."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers

from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.contract.spec import ModelSpec
from sie_triton.models.families.shared.towers.processor import TowerProcessor
from sie_triton.models.families.siglip import SiglipFiles
from sie_triton.models.inputs.patch_resizing import resized_to
from sie_triton.models.inputs.pixels import resized
from sie_triton.models.inputs.tokenizer import after, open_tokenizer, padding, truncating

_SPACES = (normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip())
_LOWER = normalizers.Lowercase()
# ASCII only.
_PUNCTUATION = normalizers.Replace(Regex(r"[!-/:-@\[-`{-~]"), "")

# Steps of text cleaning, by open_clip's names. The last two belong to transformers' tokenizers of SigLIP and SigLIP 2.
STEPS: Mapping[str, Sequence[normalizers.Normalizer]] = {
    "whitespace": _SPACES,
    "lower": (*_SPACES, _LOWER),
    "canonicalize": (normalizers.Replace("_", " "), _PUNCTUATION, _LOWER, *_SPACES),
    "siglip": (_LOWER, _PUNCTUATION, *_SPACES),
    "siglip2": (_LOWER,),
}


def load_processor(spec: ModelSpec, directory: Path) -> TowerProcessor:
    """Load the processor: texts are truncated to the model file's limit, then padded to the checkpoint's length."""
    files = SiglipFiles.read(directory)
    texts, plan = files.texts, files.plan
    tokenizer = truncating(open_tokenizer(files.directory), min(spec.max_sequence_length, texts.length))
    padding(tokenizer, texts.length, texts.token, texts.on_left)
    cleaning(tokenizer, texts.cleaning)
    if isinstance(plan, ImagePlan):
        return TowerProcessor(tokenizer, partial(resized, plan=plan), lambda _: files.num_patches, spec.runtime)
    return TowerProcessor(
        tokenizer,
        lambda image: resized_to(image, plan.shape(image.height, image.width), plan.resample),
        lambda pixels: plan.num_patches(*pixels.shape[:2]),
        spec.runtime,
    )


def cleaning(tokenizer: Tokenizer, way: str) -> Tokenizer:
    """Make `tokenizer` clean texts first, and return it. `way` is a key of STEPS; empty: no cleaning."""
    return after(tokenizer, STEPS[way]) if way else tokenizer
