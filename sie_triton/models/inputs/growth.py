"""Limits of texts before they are tokenized: their length, before and after the tokenizer's normalizers."""

import json
from collections.abc import Iterable
from pathlib import Path

import tokenizers

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.limits import LIMITS as FILE_LIMITS
from sie_triton.checkpoints.tokenizer_steps import growth, steps_of
from sie_triton.errors import LoadError
from sie_triton.models.inputs.limits import LIMITS
from sie_triton.models.inputs.text import Unreadable

# Attribute of a tokenizer.
ATTRIBUTE = "growth"


def check_growth(tokenizer: tokenizers.Tokenizer, where: Path) -> None:
    """Raise LoadError if the normalizers of `tokenizer` may make very much of one character."""
    if (grown := _growth(tokenizer)) > FILE_LIMITS.max_growth:
        message = (
            f"{where}: normalizer: may make {grown:.0f} characters of one; at most {FILE_LIMITS.max_growth} are allowed"
        )
        raise LoadError(message, "unsupported")


def check_whole(texts: Iterable[str], tokenizer: tokenizers.Tokenizer) -> None:
    """Raise Unreadable if a text that is read whole, in pieces or windows, has or becomes too many characters."""
    for text in texts:
        if len(text) > LIMITS.max_text_characters:
            most = LIMITS.max_text_characters
            raise Unreadable(f"has {len(text)} characters; send at most {most}, and a longer text in parts")
        check_grown(text, tokenizer)


def check_grown(text: str, tokenizer: tokenizers.Tokenizer) -> None:
    """Raise Unreadable if the normalizers of `tokenizer` make much more of `text` than it has."""
    if _growth(tokenizer) <= LIMITS.max_usual_growth:
        return
    left = LIMITS.free_characters + LIMITS.max_usual_growth * len(text)
    for start in range(0, len(text), LIMITS.normalized_characters):
        left -= len(tokenizer.normalizer.normalize_str(text[start : start + LIMITS.normalized_characters]))
        if left < 0:
            raise Unreadable(
                f"becomes more than {LIMITS.max_usual_growth} times as long by the model's tokenizer; send another text"
            )


def _growth(tokenizer: tokenizers.Tokenizer) -> float:
    known: float | None = getattr(tokenizer, ATTRIBUTE, None)
    if known is None:
        state = b"{}" if tokenizer.normalizer is None else tokenizer.normalizer.__getstate__()
        known = growth(steps_of(Fields("normalizer", json.loads(state))))
        setattr(tokenizer, ATTRIBUTE, known)
    return known
