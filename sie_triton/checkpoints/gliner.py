"""What gliner saves: gliner_config.json, the tokenizer, and the weights of encoder and head in one file.

Standard library only: render and preprocess read these without torch.
"""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import Fields, has_file, read_fields
from sie_triton.errors import LoadError

CONFIG = "gliner_config.json"

SPAN_MODES = ("markerV0", "token_level")

# Transformers that know where a token is only by its distance from others read any number of them.
RELATIVE = ("deberta-v2", "t5", "mt5")
TOKENS_A_WORD = 4

# What other kinds of its models have, by the key that is set where they have it.
UNSUPPORTED = {
    "labels_decoder": "labels that a decoder writes",
    "relations_layer": "relations",
    "post_fusion_schema": "fusion of labels and words",
    "span_encoder_config": "an encoder over the words",
    "represent_spans": "spans beside tokens",
    "precomputed_prompts_mode": "labels that are part of the weights",
}


@dataclass(frozen=True, slots=True)
class GlinerFiles:
    """`max_words` a text, `max_width` words an entity. `label_offset`: how far from its marker a label's token is."""

    directory: Path
    config: Fields
    encoder: Fields
    labels_encoder: Fields
    span_mode: str
    hidden_size: int
    num_lstm_layers: int
    fuses_layers: bool
    max_width: int
    max_words: int
    marker: str
    separator: str
    label_offset: int
    uses_last_token: bool

    @classmethod
    def read(cls, directory: Path) -> "GlinerFiles":
        """LoadError names the file and key that cannot be used."""
        config = read_fields(directory / CONFIG)
        for key, what in UNSUPPORTED.items():
            if config.has(key) and config.values[key]:
                raise LoadError(f"{config.where}: {key}: models with {what} cannot be served", "unsupported")
        encoder = config.fields("encoder_config")
        if not encoder.values:
            message = f"{config.where}: encoder_config is missing; save the model with a gliner of 0.2.8 or later"
            raise LoadError(message, "unsupported")
        mode = config.text("span_mode", SPAN_MODES[0])
        if mode not in SPAN_MODES:
            message = f"{config.where}: span_mode {mode} cannot be served; supported are {', '.join(SPAN_MODES)}"
            raise LoadError(message, "unsupported")
        if config.text("words_splitter_type", "whitespace") != "whitespace":
            raise LoadError(f"{config.where}: words_splitter_type: only whitespace can be served", "unsupported")
        pooling = config.text("subtoken_pooling", "first")
        if pooling not in ("first", "last"):
            raise LoadError(f"{config.where}: subtoken_pooling {pooling} cannot be served", "unsupported")
        return cls(
            directory=directory,
            config=config,
            encoder=encoder,
            labels_encoder=config.fields("labels_encoder_config"),
            span_mode=mode,
            hidden_size=config.integer("hidden_size", 512, least=2),
            num_lstm_layers=config.integer("num_rnn_layers", 1),
            fuses_layers=config.flag("fuse_layers", False),
            max_width=config.integer("max_width", 12, least=1, most=1000),
            max_words=config.integer("max_len", 384, least=1),
            marker=config.text("ent_token", "<<ENT>>"),
            separator=config.text("sep_token", "<<SEP>>"),
            label_offset=0 if config.flag("embed_ent_token", True) else 1,
            uses_last_token=pooling == "last",
        )

    @property
    def is_bi_encoder(self) -> bool:
        return bool(self.labels_encoder.values)

    @property
    def architecture(self) -> str:
        return self.encoder.text("model_type", RELATIVE[0])

    def longest(self, max_prompt: int) -> int:
        """Tokens of a piece, with those of its labels, of which there are at most `max_prompt`."""
        return longest_piece(self.encoder, self.max_words, max_prompt)


def longest_piece(encoder: Fields, max_words: int, max_prompt: int) -> int:
    """Tokens that an encoder reads of so many words and of a prompt before them."""
    architecture = encoder.text("model_type", RELATIVE[0])
    if architecture in RELATIVE:
        return TOKENS_A_WORD * max_words + max_prompt
    positions = encoder.integer("max_position_embeddings", 512, least=8)
    return positions - (encoder.integer("pad_token_id", 0) + 1 if "roberta" in architecture else 0)


def is_gliner(directory: Path) -> bool:
    return has_file(directory / CONFIG)
