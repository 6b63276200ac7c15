"""Files that gliner saves: gliner_config.json, the tokenizer, and one file with the weights of encoder and head."""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import Fields, has_file, read_fields
from sie_triton.checkpoints.special_tokens import has_vocabulary
from sie_triton.errors import LoadError

CONFIG = "gliner_config.json"
LABELS_TOKENIZER = "labels_tokenizer"

# Directory of files that come from the repository of the encoder.
ENCODER = "encoder"

# In tokens; the rest of a label is not read.
LONGEST_LABEL = 512

SPAN_MODES = ("markerV0", "marker", "token_level")

# Architectures with relative positions only, which have no maximum length.
RELATIVE = ("deberta-v2", "t5", "mt5")
TOKENS_A_WORD = 4

# Keys of gliner_config.json that turn on features that cannot be served.
UNSUPPORTED = {
    "labels_decoder": "labels that a decoder generates",
    "relations_layer": "relations",
    "post_fusion_schema": "fusion of labels and words",
    "span_encoder_config": "an encoder over spans",
    "represent_spans": "span representations beside those of tokens",
    "precomputed_prompts_mode": "labels stored in the weights",
    "fuse_layers": "fusion of encoder layers",
}
INSTEAD = "adapter_path: gliner_library serves it with the gliner library, in an environment of its own"


@dataclass(frozen=True, slots=True)
class GlinerFiles:
    """Files of a GLiNER model."""

    directory: Path
    config: Fields
    encoder: Fields
    labels_encoder: Fields
    span_mode: str
    hidden_size: int
    num_lstm_layers: int
    max_width: int  # in words, of an entity
    max_words: int  # of a piece
    marker: str
    separator: str
    label_offset: int  # in tokens, from a label's marker to the token whose state is used
    uses_last_token: bool

    @classmethod
    def read(cls, directory: Path) -> "GlinerFiles":
        config = read_fields(directory / CONFIG)
        for key, what in UNSUPPORTED.items():
            if config.has(key) and config.values[key]:
                raise config.unserved(f"{key}: models with {what} cannot be served; {INSTEAD}")
        if config.text("labels_encoder", "") and not config.has("labels_encoder_config"):
            raise config.unserved("labels_encoder_config is missing; save the model with gliner 0.2.8 or later")
        mode = config.text("span_mode", SPAN_MODES[0])
        if mode not in SPAN_MODES:
            raise config.unserved(
                f"span_mode {mode} cannot be served; supported are {', '.join(SPAN_MODES)}; {INSTEAD}"
            )
        if config.text("words_splitter_type", "whitespace") != "whitespace":
            raise config.unserved(f"words_splitter_type: only whitespace can be served; {INSTEAD}")
        pooling = config.text("subtoken_pooling", "first")
        if pooling not in ("first", "last"):
            raise config.unserved(f"subtoken_pooling {pooling} cannot be served; {INSTEAD}")
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
        """Directory of the word tokenizer."""
        return self.directory if has_vocabulary(self.directory) else self.directory / ENCODER

    @property
    def complete(self) -> tuple[Path, ...]:
        """Directories that hold both weights and a tokenizer."""
        return (self.directory,) if self.tokenizer == self.directory else ()

    @property
    def gives_vocabulary_size(self) -> bool:
        """False if config.json of the encoder gives the vocabulary size before tokens were added."""
        return self.config.has("encoder_config")

    @property
    def labels_tokenizer(self) -> Path:
        """Directory of the tokenizer for a bi-encoder's labels."""
        return self.directory / LABELS_TOKENIZER

    @property
    def longest_label(self) -> int:
        """Maximum tokens that a bi-encoder reads of a label."""
        most = read_fields(self.labels_tokenizer / "tokenizer_config.json", required=False)
        said = min(most.integer("model_max_length", LONGEST_LABEL, least=3, most=None), LONGEST_LABEL)
        return min(said, _positions(self.labels_encoder, LONGEST_LABEL))

    @property
    def architecture(self) -> str:
        return self.encoder.text("model_type", RELATIVE[0])

    def longest(self, max_prompt: int) -> int:
        """Return the maximum tokens of a piece, including its labels, which have at most `max_prompt` tokens."""
        return longest_piece(self.encoder, self.max_words, max_prompt)


def longest_piece(encoder: Fields, max_words: int, max_prompt: int) -> int:
    """Return how many tokens the transformer reads at once, for that many words after a prompt."""
    if encoder.text("model_type", RELATIVE[0]) in RELATIVE:
        return TOKENS_A_WORD * max_words + max_prompt
    return _positions(encoder, 512)


def _positions(encoder: Fields, default: int) -> int:
    """Return the number of tokens that a transformer with absolute positions can read."""
    positions = encoder.integer("max_position_embeddings", default, least=8)
    numbered_from = encoder.integer("pad_token_id", 0) + 1 if "roberta" in encoder.text("model_type", "") else 0
    return positions - numbered_from


def encoder_of(config: Fields, directory: Path) -> Fields:
    """Return config.json of the encoder, as its own repository has it."""
    if not has_file(directory / ENCODER / "config.json"):
        message = (
            f"{config.where}: the files of its encoder are missing; those of {config.text('model_name')} are fetched "
            f"if a model file names the model; else put them into a directory {ENCODER} beside it"
        )
        raise LoadError(message, "not found")
    return read_fields(directory / ENCODER / "config.json")


def other_repositories(directory: Path) -> dict[str, str]:
    """Return the directory for files of the encoder → their repository. Older versions of gliner did not save them."""
    config = read_fields(directory / CONFIG)
    if has_file(directory / ENCODER) or (config.has("encoder_config") and has_vocabulary(directory)):
        return {}
    return {ENCODER: config.text("model_name")}


def labels_repository(directory: Path) -> dict[str, str]:
    """Return the directory for a bi-encoder's label tokenizer → its repository; empty if the tokenizer is there."""
    if has_file(directory / LABELS_TOKENIZER):
        return {}
    return {LABELS_TOKENIZER: read_fields(directory / CONFIG).text("labels_encoder")}


def is_gliner(directory: Path) -> bool:
    return has_file(directory / CONFIG)
