"""What gliner saves: gliner_config.json, the tokenizer, and the weights of encoder and head in one file.

Standard library only: render and preprocess read these without torch.
"""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import Fields, has_file, read_fields
from sie_triton.errors import LoadError

CONFIG = "gliner_config.json"
LABELS_TOKENIZER = "labels_tokenizer"

# What stands there is of the repository that the encoder comes from.
ENCODER = "encoder"

# Tokens; what is behind them in a label is not read.
LONGEST_LABEL = 512

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
    "fuse_layers": "a fusion of their layers",
}
INSTEAD = "adapter_path: gliner_library serves it with the library gliner, in an environment of its own"


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
                raise LoadError(f"{config.where}: {key}: models with {what} cannot be served; {INSTEAD}", "unsupported")
        if config.text("labels_encoder", "") and not config.has("labels_encoder_config"):
            message = f"{config.where}: labels_encoder_config is missing; save the model with gliner 0.2.8 or later"
            raise LoadError(message, "unsupported")
        mode = config.text("span_mode", SPAN_MODES[0])
        if mode not in SPAN_MODES:
            message = f"{config.where}: span_mode {mode} is none of {', '.join(SPAN_MODES)}; {INSTEAD}"
            raise LoadError(message, "unsupported")
        if config.text("words_splitter_type", "whitespace") != "whitespace":
            message = f"{config.where}: words_splitter_type: only whitespace can be served; {INSTEAD}"
            raise LoadError(message, "unsupported")
        pooling = config.text("subtoken_pooling", "first")
        if pooling not in ("first", "last"):
            raise LoadError(f"{config.where}: subtoken_pooling {pooling} cannot be served; {INSTEAD}", "unsupported")
        return cls(
            directory=directory,
            config=config,
            encoder=config.fields("encoder_config") if config.has("encoder_config") else encoder_of(config, directory),
            labels_encoder=config.fields("labels_encoder_config"),
            span_mode=mode,
            hidden_size=config.integer("hidden_size", 512, least=2),
            num_lstm_layers=config.integer("num_rnn_layers", 1),
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
    def tokenizer(self) -> Path:
        """Where the tokenizer of the words is."""
        return self.directory if has_tokenizer(self.directory) else self.directory / ENCODER

    @property
    def complete(self) -> tuple[Path, ...]:
        """The directories that hold weights and a tokenizer of theirs."""
        return (self.directory,) if self.tokenizer == self.directory else ()

    @property
    def tells_vocabulary(self) -> bool:
        """False where the encoder is described as it was before tokens were added."""
        return self.config.has("encoder_config")

    @property
    def labels_tokenizer(self) -> Path:
        """Where the tokenizer of a bi-encoder's labels is."""
        return self.directory / LABELS_TOKENIZER

    @property
    def longest_label(self) -> int:
        """Tokens of a label that a bi-encoder reads."""
        most = read_fields(self.labels_tokenizer / "tokenizer_config.json", required=False)
        said = min(most.integer("model_max_length", LONGEST_LABEL, least=3, most=None), LONGEST_LABEL)
        return min(said, _positions(self.labels_encoder, LONGEST_LABEL))

    @property
    def architecture(self) -> str:
        return self.encoder.text("model_type", RELATIVE[0])

    def longest(self, max_prompt: int) -> int:
        """Tokens of a piece, with those of its labels, of which there are at most `max_prompt`."""
        return longest_piece(self.encoder, self.max_words, max_prompt)


def longest_piece(encoder: Fields, max_words: int, max_prompt: int) -> int:
    """Tokens of so many words, and of a prompt before them, that a transformer reads at once."""
    if encoder.text("model_type", RELATIVE[0]) in RELATIVE:
        return TOKENS_A_WORD * max_words + max_prompt
    return _positions(encoder, 512)


def _positions(encoder: Fields, default: int) -> int:
    """Tokens that a transformer which numbers them can read."""
    positions = encoder.integer("max_position_embeddings", default, least=8)
    numbered_from = encoder.integer("pad_token_id", 0) + 1 if "roberta" in encoder.text("model_type", "") else 0
    return positions - numbered_from


def encoder_of(config: Fields, directory: Path) -> Fields:
    """What the repository says that the encoder comes from."""
    if not has_file(directory / ENCODER / "config.json"):
        message = (
            f"{config.where}: the files of its encoder are not here; those of {config.text('model_name')} are fetched "
            f"where a model file names the model, or belong in a directory {ENCODER} beside it"
        )
        raise LoadError(message, "not found")
    return read_fields(directory / ENCODER / "config.json")


def has_tokenizer(directory: Path) -> bool:
    return has_file(directory / "tokenizer.json") or has_file(directory / "spm.model")


def elsewhere(directory: Path) -> dict[str, str]:
    """Of those that older versions saved: the directory that files of the encoder belong in → their repository."""
    config = read_fields(directory / CONFIG)
    if has_file(directory / ENCODER) or (config.has("encoder_config") and has_tokenizer(directory)):
        return {}
    return {ENCODER: config.text("model_name")}


def labels_elsewhere(directory: Path) -> dict[str, str]:
    """Where the tokenizer of a bi-encoder's labels is not here: the directory it belongs in → the repository of it."""
    if has_file(directory / LABELS_TOKENIZER):
        return {}
    return {LABELS_TOKENIZER: read_fields(directory / CONFIG).text("labels_encoder")}


def is_gliner(directory: Path) -> bool:
    return has_file(directory / CONFIG)
