"""Files that glirel saves: glirel_config.json, weights, and, in `encoder`, config.json and tokenizer of its encoder.

Standard library only: render and preprocess read these without torch.
"""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import Fields, has_file, read_fields
from sie_triton.checkpoints.gliner import ENCODER, encoder_of, longest_piece

CONFIG = "glirel_config.json"

MARKER, SEPARATOR = "[REL]", "[SEP]"

# Tokens that glirel adds to the tokenizer of its encoder, special ones first.
ADDED_SPECIAL, ADDED = ("[FLERT]",), (MARKER, SEPARATOR, "[E]", "[/E]")

# Values that can be served, by key, the default first.
SERVED = {
    "scorer": ("dot",),
    "rel_mode": ("marker",),
    "span_marker_mode": ("markerv1",),
    "subtoken_pooling": ("first",),
    "label_embed_strategy": ("both", "label", "ent_token"),
}


@dataclass(frozen=True, slots=True)
class GlirelFiles:
    """Files of a GLiREL model."""

    directory: Path
    config: Fields
    encoder: Fields
    hidden_size: int
    max_words: int  # read at once
    max_distance: int | None  # in words, from an entity back to an earlier one; None: no limit
    label_strategy: str  # a label's state: that of its first token, of the marker before it, or their mean
    refines_relations: bool
    refines_labels: bool
    refining_factor: int

    @classmethod
    def read(cls, directory: Path) -> "GlirelFiles":
        config = read_fields(directory / CONFIG)
        chosen = {key: config.one_of(key, allowed) for key, allowed in SERVED.items()}
        if config.flag("add_entity_markers", False):
            raise config.unserved("add_entity_markers: models that mark entities in the text cannot be served")
        return cls(
            directory=directory,
            config=config,
            encoder=encoder_of(config, directory),
            hidden_size=config.integer("hidden_size", least=2),
            max_words=config.integer("max_len", 384, least=2),
            max_distance=(
                config.integer("max_entity_pair_distance") if config.has("max_entity_pair_distance") else None
            ),
            label_strategy=chosen["label_embed_strategy"],
            refines_relations=config.flag("refine_relation", False),
            refines_labels=config.flag("refine_prompt", False),
            refining_factor=config.integer("ffn_mul", 4, least=1),
        )

    @property
    def tokenizer(self) -> Path:
        return self.directory / ENCODER

    @property
    def architecture(self) -> str:
        return self.encoder.text("model_type")

    def longest(self, max_prompt: int) -> int:
        """Return the maximum tokens of a piece, including its labels, which have at most `max_prompt` tokens."""
        return longest_piece(self.encoder, self.max_words, max_prompt)


def other_repositories(directory: Path) -> dict[str, str]:
    """Return the directory for the encoder's files → their repository; empty if the files are there."""
    if has_file(directory / ENCODER):
        return {}
    return {ENCODER: read_fields(directory / CONFIG).text("model_name")}


def is_glirel(directory: Path) -> bool:
    return has_file(directory / CONFIG)
