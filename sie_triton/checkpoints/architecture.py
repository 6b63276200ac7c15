"""What config.json says a transformer was saved with, and what sentence-transformers makes of it where nothing else
was saved."""

from pathlib import Path

from sie_triton.checkpoints.files import Fields, has_file
from sie_triton.errors import LoadError

MASKED_LM, CAUSAL_LM, CLASSIFIER = "MaskedLM", "CausalLM", "SequenceClassification"

# Heads beside which a mean of the states is what sentence-transformers gives.
PLAIN = ("", "PreTraining")


def is_bare(directory: Path) -> bool:
    """As transformers saves a model: nothing says what is made of its states."""
    return not has_file(directory / "modules.json")


def architecture(config: Fields) -> str:
    """The class it was saved from; empty where config.json does not say."""
    return (*config.texts("architectures"), "")[0]


def head(config: Fields) -> str:
    """What that class has on top of its encoder: "MaskedLM" of BertForMaskedLM; empty where it has nothing."""
    return architecture(config).partition("For")[2]


def default_pooling(config: Fields) -> str:
    """Of a bare directory, in sentence-transformers 6.2: a language model's last token, else the mean."""
    return "lasttoken" if head(config) == CAUSAL_LM and config.flag("is_causal", True) else "mean"


def check_pooled(config: Fields) -> None:
    """LoadError where a bare directory was saved for something else than having its states pooled."""
    name, wanted = architecture(config), head(config)
    if config.flag("is_encoder_decoder", False) and not name.endswith("EncoderModel"):
        message = f"{config.where}: {name} is an encoder-decoder, which writes text"
        raise LoadError(f"{message}; save its encoder alone (as T5EncoderModel does) to serve that", "unsupported")
    if wanted not in (*PLAIN, MASKED_LM, CAUSAL_LM):
        raise LoadError(
            f"{config.where}: {name} ends in a head that no family of this version computes; to serve the mean of its "
            "states all the same, write a model file with profiles.default.adapter_path: sentence_transformer",
            "unsupported",
        )
