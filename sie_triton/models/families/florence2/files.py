"""Files of a Florence-2 checkpoint, saved by transformers or by Microsoft: images, lengths, and filters for answers."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import NESTED, ImagePlan, number
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.errors import LoadError
from sie_triton.models.families.florence2.original_files import BANNED, TOKENS, as_transformers, is_original

MODEL_TYPE = "florence2"


@dataclass(frozen=True, slots=True)
class Florence2Files:
    """Files of a Florence-2 model.

    An image becomes `num_patches` tokens `image_token`. `positions` is the maximum number of tokens of encoder and
    decoder. Phrases in `banned` are not grounded. Words on less than `least_area`, a share of the image, are dropped.
    `added_tokens` are appended to those of the tokenizer. `original` is Microsoft's config.json translated to that of
    transformers, None if transformers saved the file.
    """

    directory: Path
    plan: ImagePlan
    num_patches: int
    image_token: int
    positions: int
    banned: frozenset[str]
    least_area: float
    added_tokens: tuple[str, ...] = ()
    original: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, directory: Path) -> "Florence2Files":
        config = read_fields(directory / "config.json")
        original = as_transformers(config) if is_original(config) else None
        if original is not None:
            config = Fields(config.where, original)
        vision, text = config.fields("vision_config"), config.fields("text_config")
        text.integer("d_model", 1024, least=1, most=LIMITS.max_width)
        for layers in ("encoder_layers", "decoder_layers"):
            text.integer(layers, 12, least=1, most=LIMITS.max_layers)
        plan = ImagePlan.read(directory, "CLIPImageProcessor")
        asked = read_fields(directory / NESTED, required=False).fields("post_processor_config")
        return cls(
            directory,
            plan,
            _num_patches(vision, plan),
            config.integer("image_token_id", 51289),
            text.integer("max_position_embeddings", 1024, least=2),
            BANNED if original else frozenset(asked.fields("phrase_grounding").texts("banned_grounding_tokens")),
            number(asked.fields("ocr"), "AREA_THRESHOLD", 0.0),
            TOKENS if original else (),
            original,
        )


def is_florence2(directory: Path) -> bool:
    try:
        return read_fields(directory / "config.json", required=False).text("model_type", "") == MODEL_TYPE
    except LoadError:
        return False


def _num_patches(vision: Fields, plan: ImagePlan) -> int:
    """Return the number of patches that the convolutions make of an image, and one more for the image as a whole."""
    sides = list(plan.shape)
    stages = zip(*(_numbers(vision, name, usual) for name, usual in CONVOLUTIONS.items()), strict=True)
    for kernel, stride, padding in stages:
        sides = [(side + 2 * padding - kernel) // stride + 1 for side in sides]
    most = vision.integer("max_position_embeddings", 50, least=1)
    if not all(1 <= side <= most for side in sides):
        message = f"{vision.where}: images of {plan.shape[0]} × {plan.shape[1]} become {sides[0]} × {sides[1]} patches"
        raise LoadError(f"{message}, but its max_position_embeddings is {most}", "corrupt")
    return 1 + sides[0] * sides[1]


CONVOLUTIONS = {"patch_size": [7, 3, 3, 3], "patch_stride": [4, 2, 2, 2], "patch_padding": [3, 1, 1, 1]}


def _numbers(fields: Fields, name: str, usual: list[int]) -> list[int]:
    values = fields.values.get(name, usual)
    if not isinstance(values, list) or len(values) != 4:
        raise LoadError(f"{fields.where}: {name}: must be a list of 4 numbers", "corrupt")
    least = 0 if name == "patch_padding" else 1
    entries = Fields(f"{fields.where}: {name}", {str(i): value for i, value in enumerate(values)})
    return [entries.integer(str(i), least=least, most=LIMITS.max_image_side) for i in range(4)]
