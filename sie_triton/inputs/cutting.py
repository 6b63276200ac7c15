"""Long texts lose, before they are tokenized, what the model would not read. No torch.

A tokenizer takes about 250 bytes of memory for each character, and a text may have millions; a model reads some
hundred tokens. The first tokens of a text are those of its beginning: normalizers, pre-tokenizers and added tokens look
at most a word ahead, and so do merges and pieces, as none of a vocabulary goes on behind the end of a word. Where a
text has no ends of words, its last tokens may differ from those of the whole text; MARGIN_TOKENS more than are read
keep those that are read apart from them.
"""

from collections.abc import Sequence

import tokenizers

from sie_triton.inputs.text import Unreadable

# Tokens behind those that are read. WordPiece makes one token of a word of 101 characters, and 100 of one of 100.
MARGIN_TOKENS = 256

# A guess that suffices for most texts. One with more characters a token is cut later.
CHARACTERS_PER_TOKEN = 8
GROWTH = 4

# A longer text is refused if its first characters do not make as many tokens as are read: spaces, or one endless word.
LONGEST_START = 500_000

# How far back the end of a word is looked for.
LONGEST_WORD = 1_000

# A text, or a text and what it is read with.
Input = str | tuple[str, str]


def encoded(tokenizer: tokenizers.Tokenizer, inputs: Sequence[Input]) -> list[tokenizers.Encoding]:
    """Tokenize texts, or pairs of texts, with a tokenizer that truncates on the right.

    Each encoding equals that of the whole text; of two texts that are both longer than what is read, either may have a
    token more than without the cut. Unreadable says that a text is too long.
    """
    longest = int((tokenizer.truncation or {})["max_length"])
    found: list[tokenizers.Encoding] = tokenizer.encode_batch_fast(
        [
            beginning(tokenizer, each, longest)
            if isinstance(each, str)
            else tuple(beginning(tokenizer, text, longest) for text in each)
            for each in inputs
        ]
    )
    return found


def beginning(tokenizer: tokenizers.Tokenizer, text: str, num_tokens: int) -> str:
    """Return as much of `text` as its first `num_tokens` tokens need, and some more; Unreadable if that is too long."""
    needed = num_tokens + MARGIN_TOKENS
    size = CHARACTERS_PER_TOKEN * needed
    longest = max(LONGEST_START, GROWTH * size)
    while size < min(len(text), longest):
        start = text[: _word_end(text, size)]
        if _count(tokenizer, start) >= needed:
            return start
        size *= GROWTH
    if len(text) > longest:
        raise Unreadable(
            f"has {len(text)} characters, of which the first {longest} make fewer than {needed} tokens; send at most "
            f"{longest} characters, or words in place of spaces and symbols"
        )
    return text


def _word_end(text: str, size: int) -> int:
    """The last place up to `size` where a space follows a word; `size` where there is none near."""
    for place in range(size, max(1, size - LONGEST_WORD), -1):
        if text[place].isspace() and not text[place - 1].isspace():
            return place
    return size


def _count(tokenizer: tokenizers.Tokenizer, text: str) -> int:
    """Tokens of a text, without special tokens and padding, before truncation."""
    encoding = tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
    return sum(sum(part.attention_mask) for part in (encoding, *encoding.overflowing))
