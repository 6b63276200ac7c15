"""Files that gliclass saves: config.json, the tokenizer, and one file with the weights of encoder and head.

Standard library only: render and preprocess read these without torch.
"""

from dataclasses import dataclass
from pathlib import Path

from sie_triton.checkpoints.files import Fields, has_file, read_fields

POOLINGS = ("first", "last", "avg", "max", "sum", "rms", "abs_max", "abs_avg")
SCORERS = ("simple", "weighted-dot", "mlp", "hopfield")

# Architectures with relative positions only, which have no maximum length.
RELATIVE = ("deberta-v2",)

# The default of gliclass, to which it truncates a text together with its labels.
USUAL_LENGTH = 1024

# Keys of config.json that turn on features that cannot be served.
UNSUPPORTED = {
    "use_lstm": "an LSTM over the tokens",
    "squeeze_layers": "an average of all layers",
    "use_segment_embeddings": "segment embeddings",
    "use_calibrator": "a calibrator",
    "multimodal": "images or audio",
}


@dataclass(frozen=True, slots=True)
class GliclassFiles:
    """Files of a GLiClass model."""

    directory: Path
    config: Fields
    encoder: Fields
    pooling: str
    scorer: str
    hidden_size: int
    marker_id: int
    averages_labels: bool  # a label's state is the mean of its tokens, not that of one
    embeds_marker: bool  # that one is the first, the marker, not the second
    reads_text_alone: bool  # only the states from the separator on are pooled
    labels_first: bool
    normalizes: bool
    activation: str

    @classmethod
    def read(cls, directory: Path) -> "GliclassFiles":
        config = read_fields(directory / "config.json")
        check_supported(config)
        said = config.fields("encoder_config")
        sizes = {"vocab_size": config.integer("vocab_size", least=1)} if config.has("vocab_size") else {}
        encoder = Fields(said.where, {"model_type": RELATIVE[0], **said.values, **sizes})
        return cls(
            directory=directory,
            config=config,
            encoder=encoder,
            pooling=config.one_of("pooling_strategy", POOLINGS),
            scorer=config.one_of("scorer_type", SCORERS),
            hidden_size=config.integer("hidden_size", encoder.integer("hidden_size", least=1), least=1),
            marker_id=config.integer("class_token_index"),
            averages_labels=config.one_of("class_token_pooling", ("first", "average")) == "average",
            embeds_marker=config.flag("embed_class_token", True),
            reads_text_alone=config.flag("extract_text_features", False),
            labels_first=config.flag("prompt_first", False),
            normalizes=config.flag("normalize_features", False),
            activation=config.text("projector_hidden_act", "gelu"),
        )

    @property
    def architecture(self) -> str:
        return self.encoder.text("model_type")

    @property
    def longest(self) -> int:
        """Maximum tokens in a row."""
        positions = self.encoder.integer("max_position_embeddings", 512, least=8)
        if self.architecture in RELATIVE:
            return max(positions, USUAL_LENGTH)
        return positions - (self.encoder.integer("pad_token_id", 0) + 1 if "roberta" in self.architecture else 0)


def check_supported(config: Fields) -> None:
    """Raise LoadError naming the key of a feature that cannot be served."""
    kind = config.text("architecture_type", "uni-encoder")
    if kind != "uni-encoder":
        raise config.unserved(f"architecture_type {kind} cannot be served; supported is uni-encoder")
    for key, what in UNSUPPORTED.items():
        if config.flag(key, False):
            raise config.unserved(f"{key}: models with {what} cannot be served")
    if config.values.get("encoder_layer_id", -1) != -1:
        raise config.unserved("encoder_layer_id: only -1, the last layer, can be served")
    if not config.has("encoder_config"):
        raise config.unserved("encoder_config is missing")


def is_gliclass(directory: Path) -> bool:
    path = directory / "config.json"
    return has_file(path) and read_fields(path).values.get("model_type") == "GLiClass"
