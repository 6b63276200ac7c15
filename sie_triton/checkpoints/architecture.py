"""The model class that config.json names, and the pooling that sentence-transformers chooses for it by default."""

import re
from pathlib import Path

from sie_triton.checkpoints.files import Fields, has_file

MASKED_LM, CAUSAL_LM = "MaskedLM", "CausalLM"
CLASSIFIER, TOKEN_CLASSIFIER = "SequenceClassification", "TokenClassification"


def is_bare(directory: Path) -> bool:
    """Return True if transformers saved the directory: without modules.json, no file says how to pool states."""
    return not has_file(directory / "modules.json")


def architecture(config: Fields) -> str:
    """Return the model class that config.json names; empty if it names none."""
    return (*config.texts("architectures"), "")[0]


def head(config: Fields) -> str:
    """Return the head of that class; empty if it has none.

    >>> [head(Fields("", {"architectures": [name]})) for name in ("BertModel", "RoFormerForMaskedLM")]
    ['', 'MaskedLM']
    """
    found = re.search("For([A-Z].*)", architecture(config))
    return found[1] if found else ""


def default_pooling(config: Fields) -> str:
    """Return the pooling of a bare directory, as sentence-transformers 6.2 chooses it.

    The last token for a language model, else the mean.
    """
    return "lasttoken" if head(config) == CAUSAL_LM and config.flag("is_causal", True) else "mean"


def check_pooled(config: Fields) -> None:
    """Raise LoadError if the model in a bare directory has a task other than pooling its states."""
    name, wanted = architecture(config), head(config)
    if config.flag("is_encoder_decoder", False) and not name.endswith("EncoderModel"):
        message = f"{name} is an encoder-decoder, which generates text"
        raise config.unserved(f"{message}; to serve its encoder, save the encoder alone (as T5EncoderModel does)")
    if wanted not in ("", "PreTraining", MASKED_LM, CAUSAL_LM):
        raise config.unserved(
            f"{name} has a head that no family of this version supports; to serve the mean of its "
            "states instead, write a model file with profiles.default.adapter_path: sentence_transformer"
        )
