"""SigLIP and SigLIP 2: images and texts in a common embedding space (Zhai et al., 2023; Tschannen et al., 2025).

image → resized → vision transformer → attention pooling → dense
text → tokens, padded to the model's length → text transformer → state of the last place → head → dense
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isqrt
from pathlib import Path

from tokenizers import Regex, Tokenizer, normalizers

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import ImagePlan
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.checkpoints.naflex import NaflexPlan
from sie_triton.checkpoints.open_clip import OpenClipFiles, is_open_clip
from sie_triton.checkpoints.positions import UNLIMITED
from sie_triton.checkpoints.special_tokens import special_token
from sie_triton.checkpoints.towers import check_shape, check_tower, home_of, model_type, model_type_file, most_tokens
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Recognised
from sie_triton.models.families.shared.towers import TowerFamily
from sie_triton.models.families.shared.towers.processor import TowerProcessor
from sie_triton.models.inputs.patch_resizing import resized_to
from sie_triton.models.inputs.pixels import resized
from sie_triton.models.inputs.tokenizer import after, open_tokenizer, padding, truncating

ONE_SIZE, ANY_SHAPE = "siglip", "siglip2"

# Tokenizers that clean texts, whatever tokenizer.json says. Every ANY_SHAPE model has the second.
CLEANING = {"SiglipTokenizer": "siglip", "Siglip2Tokenizer": "siglip2"}


@dataclass(frozen=True, slots=True)
class PaddedTexts:
    """Padding of texts: all become `length` tokens, and the model reads the padding `token` too."""

    length: int
    token: str
    on_left: bool
    cleaning: str  # key of STEPS in processor.py, applied before the steps in tokenizer.json; empty: none


@dataclass(frozen=True, slots=True)
class SiglipFiles:
    """Files of a SigLIP model. An image becomes at most `num_patches`."""

    directory: Path
    config: Fields
    dim: int
    texts: PaddedTexts
    plan: ImagePlan | NaflexPlan
    num_patches: int

    @classmethod
    def read(cls, directory: Path) -> "SiglipFiles":
        if is_open_clip(directory):
            found = OpenClipFiles.read(directory)
            return cls.of(directory, found.config, found.plan, UNLIMITED, found.cleaning)
        home = home_of(directory)
        config = read_fields(home / "config.json")
        if config.text("model_type") == ONE_SIZE:
            plan: ImagePlan | NaflexPlan = ImagePlan.read(home, "SiglipImageProcessor")
        else:
            plan = NaflexPlan.read(home)
        return cls.of(home, config, plan, most_tokens(home))

    @classmethod
    def of(
        cls, home: Path, config: Fields, plan: ImagePlan | NaflexPlan, most: int, cleaning: str = ""
    ) -> "SiglipFiles":
        """Check the settings; `most` limits a text's tokens in addition to the model's own limit."""
        text, vision = config.fields("text_config"), config.fields("vision_config")
        check_tower(text)
        check_tower(vision)
        width = text.integer("hidden_size", 768)
        dims = (
            text.integer("projection_size", width, least=1, most=LIMITS.max_width),
            vision.integer("hidden_size", 768),
        )
        if dims[0] != dims[1]:
            raise config.unserved(f"texts become {dims[0]} numbers and images {dims[1]}, which cannot be compared")
        if not vision.flag("vision_use_head", True):
            raise vision.unserved("vision_use_head false: there is no layer that makes one vector of an image")
        texts = _texts(home, config, min(most, text.integer("max_position_embeddings", 64, least=2)), cleaning)
        return cls(home, config, dims[0], texts, plan, _num_patches(home, vision, plan))


def _num_patches(home: Path, vision: Fields, plan: ImagePlan | NaflexPlan) -> int:
    """Return the maximum number of patches; raise LoadError if images do not have the size that the model reads."""
    side = vision.integer("patch_size", 16, least=1)
    if isinstance(plan, ImagePlan):
        size = vision.integer("image_size", 224, least=1)
        check_shape(home, plan, size)
        return (size // side) ** 2
    if plan.patch_size != side:
        message = f"{home}: images are cut into patches of {plan.patch_size} pixels, but config.json needs {side}"
        raise LoadError(message, "unsupported")
    positions = vision.integer("num_patches", 256, least=1)
    if isqrt(positions) ** 2 != positions:
        raise vision.corrupt(f"num_patches: must be a square (given {positions})")
    return plan.max_num_patches


def _texts(home: Path, config: Fields, length: int, cleaning: str) -> PaddedTexts:
    settings = read_fields(home / "tokenizer_config.json", required=False)
    kind = "Siglip2Tokenizer" if config.text("model_type") == ANY_SHAPE else settings.text("tokenizer_class", "")
    usual = "left" if kind in ("Siglip2Tokenizer", "GemmaTokenizer", "GemmaTokenizerFast") else "right"
    return PaddedTexts(
        length=length,
        token=special_token(home, "pad_token"),
        on_left=settings.text("padding_side", usual) == "left",
        cleaning=cleaning or CLEANING.get(kind, ""),
    )


class Siglip(TowerFamily):
    reference_adapters = ("siglip:SiglipAdapter",)

    def recognise(self, directory: Path) -> Recognised | None:
        if (kind := model_type(directory)) not in (ONE_SIZE, ANY_SHAPE):
            return None
        files = SiglipFiles.read(directory)
        if isinstance(files.plan, ImagePlan):
            height, width = files.plan.shape
            images = f"images of {height} × {width} in {files.num_patches} patches"
        else:
            images = f"images of any shape in at most {files.num_patches} patches"
        reason, dims = f"{model_type_file(directory)}: {kind}, {images}", {"dense": files.dim}
        return Recognised(reason, files.texts.length, dims, normalize=True, weights=(files.directory,))

    def keeps_tokenizer(self, directory: Path) -> bool:
        # transformers has no fast form of the first SigLIP's tokenizer: the processor cleans texts in its place.
        return SiglipFiles.read(directory).texts.cleaning == "siglip" or is_open_clip(directory)

    def longest(self, directory: Path) -> int:
        return SiglipFiles.read(directory).texts.length


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
