"""Files of models that read pages, as transformers saves ColPali and similar models.

A language model reads the vision tower's states among those of words, and a projection of each token's state follows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.contents import read_any_config
from sie_triton.checkpoints.files import Fields, read_fields
from sie_triton.checkpoints.image_processor import NESTED
from sie_triton.checkpoints.limits import LIMITS
from sie_triton.errors import LoadError

IMAGE_TOKENS = ("image_token_id", "image_token_index")


@dataclass(frozen=True, slots=True)
class PageFiles:
    """Files of a model that reads pages: of a vision language model with its two parts."""

    directory: Path
    vlm: Fields
    text: Fields
    vision: Fields
    dim: int  # of vectors
    longest: int  # in tokens
    image_token: int  # id of the token whose state is replaced by one of the image
    settings: Fields  # of the library's processor

    @classmethod
    def read(cls, directory: Path, kinds: Sequence[str], longest: int) -> "PageFiles":
        """Read the files; raise LoadError naming the one that cannot be used.

        `kinds` are the supported types of vision language models, `longest` is the default of their maximum length.
        """
        config = read_any_config(directory)
        # colpali-engine saves the config of the vision language model alone, though there is one more layer.
        vlm = config.fields("vlm_config") if config.has("vlm_config") else config
        if vlm.text("model_type", kinds[0]) not in kinds:
            known = ", ".join(kinds)
            raise vlm.unserved(f"model_type {vlm.text('model_type')!r} cannot be served; supported are {known}")
        # Before transformers 4.52, some had the fields of the language model at the top level, beside vision_config.
        text, vision = vlm.fields("text_config") if vlm.has("text_config") else vlm, vlm.fields("vision_config")
        for part in (text, vision):
            for layers in ("num_hidden_layers", "depth"):
                part.integer(layers, 1, least=1, most=LIMITS.max_layers)
            for width in ("hidden_size", "embed_dim", "out_hidden_size", "intermediate_size"):
                part.integer(width, 1, least=1, most=LIMITS.max_width)
            for heads in ("num_attention_heads", "num_heads"):
                part.integer(heads, 1, least=1, most=LIMITS.max_width)
        key = next(filter(vlm.has, IMAGE_TOKENS), IMAGE_TOKENS[0])
        return cls(
            directory,
            vlm,
            text,
            vision,
            config.integer("embedding_dim", 128, least=1, most=LIMITS.max_width),
            text.integer("max_position_embeddings", longest, least=2),
            vlm.integer(key),
            read_fields(directory / NESTED, required=False),
        )


def kind_of(directory: Path) -> tuple[str, str]:
    """Return model type and class; empty if there is no config.json, or if the file does not name them."""
    try:
        config = read_fields(directory / "config.json", required=False)
        return config.text("model_type", ""), next(iter(config.texts("architectures")), "")
    except LoadError:
        return "", ""
