"""Reads the files of a cross-encoder, saved by sentence-transformers' CrossEncoder or by transformers."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sie_triton.errors import LoadError
from sie_triton.weights.sentence_transformers import TextFiles, read_json

SIGMOID = "torch.nn.modules.activation.Sigmoid"


@dataclass(frozen=True, slots=True)
class CrossEncoderFiles:
    """`activation`, the dotted name of a torch.nn class, makes a score of the logit.

    `tokenizer_outputs`: what the tokenizer's file says it gives the model, None where it leaves that to
    `tokenizer_class`, which may be empty.
    """

    text: TextFiles
    activation: str
    tokenizer_outputs: tuple[str, ...] | None
    tokenizer_class: str

    @classmethod
    def read(cls, directory: Path) -> "CrossEncoderFiles":
        """Raises LoadError naming the file that cannot be used."""
        text = TextFiles.read(directory)
        saved = read_json(directory / "config_sentence_transformers.json", default={})
        num_labels = len(text.config.get("id2label") or ()) or int(text.config.get("num_labels", 2))
        if num_labels != 1:
            message = f"config.json in {text.transformer} has {num_labels} labels; a score needs a model with one"
            raise LoadError(message, "unsupported")
        tokenizer = read_json(text.transformer / "tokenizer_config.json", default={})
        outputs = tokenizer.get("model_input_names")
        return cls(
            text,
            _activation(saved, text.config),
            None if outputs is None else tuple(outputs),
            str(tokenizer.get("tokenizer_class") or ""),
        )


def is_cross_encoder(config: dict[str, Any]) -> bool:
    """By transformers' config.json."""
    return str((config.get("architectures") or [""])[0]).endswith("ForSequenceClassification")


def _activation(saved: dict[str, Any], config: dict[str, Any]) -> str:
    """Where sentence-transformers has written it, newest first."""
    named = (
        saved.get("activation_fn"),
        (config.get("sentence_transformers") or {}).get("activation_fn"),
        config.get("sbert_ce_default_activation_function"),
    )
    return str(next(filter(None, named), SIGMOID))
