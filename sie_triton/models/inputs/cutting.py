"""Truncate long texts before tokenization, outside everything that the model reads. No torch.

A tokenizer takes about 250 bytes of memory for each character, and a text may have millions of characters, while a
model reads a few hundred tokens. The first tokens of a text depend on its beginning only, the last ones on its end:
normalizers, pre-tokenizers and added tokens look at most one word further. So do merges and pieces, because no entry of
a vocabulary crosses the end of a word. If the text is cut within a word, the tokens there may differ from those of the
whole text. The part therefore has `margin_tokens` more tokens than the model reads.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import tokenizers

from sie_triton.models.inputs.growth import ATTRIBUTE, check_grown
from sie_triton.models.inputs.limits import LIMITS
from sie_triton.models.inputs.text import Unreadable

# A text or a pair of texts.
Input = str | tuple[str, str]


def encoded(tokenizer: tokenizers.Tokenizer, inputs: Sequence[Input]) -> list[tokenizers.Encoding]:
    """Tokenize texts, or pairs of texts, with a tokenizer that truncates.

    Each encoding equals that of the whole text. Exception: if both texts of a pair are longer than the model reads,
    either may keep one token more than without the cut. Raise Unreadable if a text is too long.
    """
    longest = int((tokenizer.truncation or {})["max_length"])
    found: list[tokenizers.Encoding] = tokenizer.encode_batch_fast(
        [
            kept(tokenizer, each, longest)
            if isinstance(each, str)
            else tuple(kept(tokenizer, text, longest) for text in each)
            for each in inputs
        ]
    )
    return found


def truncation_side(tokenizer: tokenizers.Tokenizer) -> str:
    """Return the side on which `tokenizer` cuts long texts, left or right."""
    return str((tokenizer.truncation or {}).get("direction", "right"))


def kept(tokenizer: tokenizers.Tokenizer, text: str, num_tokens: int) -> str:
    """Return the part of `text` with the `num_tokens` tokens that `tokenizer` keeps, and a margin.

    Raise Unreadable if the text is too long.
    """
    if len(text) <= LIMITS.characters_per_token * (num_tokens + LIMITS.margin_tokens):
        if getattr(tokenizer, ATTRIBUTE, math.inf) > LIMITS.max_usual_growth:
            check_grown(text, tokenizer)
        return text
    return _part(tokenizer, text, num_tokens, _end if truncation_side(tokenizer) == "left" else _start)


def beginning(tokenizer: tokenizers.Tokenizer, text: str, num_tokens: int) -> str:
    """Return a beginning of `text` with its first `num_tokens` tokens and a margin; Unreadable if it is too long."""
    return _part(tokenizer, text, num_tokens, _start)


def _part(tokenizer: tokenizers.Tokenizer, text: str, num_tokens: int, cut: Callable[[str, int], str]) -> str:
    needed = num_tokens + LIMITS.margin_tokens
    size = LIMITS.characters_per_token * needed
    longest = max(LIMITS.max_start_characters, 4 * size)
    while size < min(len(text), longest):
        part = cut(text, size)
        check_grown(part, tokenizer)
        if _count(tokenizer, part) >= needed:
            return part
        size *= 4
    if len(text) > longest:
        raise Unreadable(
            f"has {len(text)} characters, of which {longest} make fewer than {needed} tokens; send at most {longest} "
            "characters, or words in place of spaces and symbols"
        )
    check_grown(text, tokenizer)
    return text


def _start(text: str, size: int) -> str:
    """Return the first `size` characters, or a few less where a space follows a word."""
    places = range(size, max(1, size - LIMITS.max_word_characters), -1)
    return text[: next(filter(partial(_ends_word, text), places), size)]


def _end(text: str, size: int) -> str:
    """Return the last `size` characters, or a few less where a space follows a word; nothing without one near by.

    Within a word pairs of characters are merged from its beginning, so that its last tokens depend on all of it.
    """
    first = len(text) - size
    places = range(first, min(len(text), first + LIMITS.max_word_characters))
    return text[next(filter(partial(_ends_word, text), places), len(text)) :]


def _ends_word(text: str, place: int) -> bool:
    return text[place].isspace() and not text[place - 1].isspace()


def _count(tokenizer: tokenizers.Tokenizer, text: str) -> int:
    """Number of tokens of a text before truncation, without special tokens and padding."""
    encoding = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
    return sum(sum(part.attention_mask) for part in (encoding, *encoding.overflowing))
