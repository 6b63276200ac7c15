"""Models that read pages: a vision tower whose states stand among those of words in a language model, and a projection
of each token, as transformers saves ColPali and its kin."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.contents import read_any_config
from sie_triton.checkpoints.files import Fields, has_file, read_fields
from sie_triton.checkpoints.image_processor import NESTED
from sie_triton.checkpoints.modules import MAX_LAYERS, MAX_WIDTH
from sie_triton.errors import LoadError

# The names of one thing in different towers.
LAYERS = ("num_hidden_layers", "depth")
WIDTHS = ("hidden_size", "embed_dim", "out_hidden_size", "intermediate_size", "num_attention_heads", "num_heads")

IMAGE_TOKENS = ("image_token_id", "image_token_index")
TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")


@dataclass(frozen=True, slots=True)
class PageFiles:
    """`vlm` is the model that reads, `text` and `vision` its two parts. `dim` entries has each vector.

    `longest` is in tokens, `image_token` the one that stands where a state of the image goes; `settings` are those of
    the library's processor.
    """

    directory: Path
    vlm: Fields
    text: Fields
    vision: Fields
    dim: int
    longest: int
    image_token: int
    settings: Fields

    @classmethod
    def read(cls, directory: Path, kinds: Sequence[str], longest: int) -> "PageFiles":
        """`kinds` are the models that can be read with, `longest` what they have where the files say nothing.

        LoadError names the file that cannot be used.
        """
        config = read_any_config(directory)
        # colpali-engine saves that of the model that reads, with a layer more.
        vlm = config.fields("vlm_config") if config.has("vlm_config") else config
        if vlm.text("model_type", kinds[0]) not in kinds:
            known = ", ".join(kinds)
            message = f"{vlm.where}: model_type {vlm.text('model_type')!r} cannot be served; supported are {known}"
            raise LoadError(message, "unsupported")
        # Before transformers 4.52 some had the fields of the language model beside those of the tower.
        text, vision = vlm.fields("text_config") if vlm.has("text_config") else vlm, vlm.fields("vision_config")
        for part in (text, vision):
            for names, most in ((LAYERS, MAX_LAYERS), (WIDTHS, MAX_WIDTH)):
                for name in names:
                    part.integer(name, 1, least=1, most=most)
        key = next(filter(vlm.has, IMAGE_TOKENS), IMAGE_TOKENS[0])
        return cls(
            directory,
            vlm,
            text,
            vision,
            config.integer("embedding_dim", 128, least=1, most=MAX_WIDTH),
            text.integer("max_position_embeddings", longest, least=2),
            vlm.integer(key),
            read_fields(directory / NESTED, required=False),
        )


def kind_of(directory: Path) -> tuple[str, str]:
    """Model type and class; empty where there is no config.json, or it does not say."""
    try:
        config = read_fields(directory / "config.json", required=False)
        return config.text("model_type", ""), next(iter(config.texts("architectures")), "")
    except LoadError:
        return "", ""


def special_token(directory: Path, name: str) -> str:
    """Such as `pad_token`, as the tokenizer's files have it; LoadError where they do not."""
    for file in TOKENIZER_FILES:
        if not has_file(directory / file):
            continue
        found = read_fields(directory / file)
        value = found.values.get(name)
        if isinstance(value, dict):
            return Fields(f"{found.where}: {name}", value).text("content")
        if value is not None:
            return found.text(name)
    raise LoadError(f"{' and '.join(TOKENIZER_FILES)} in {directory} name no {name}", "unsupported")
