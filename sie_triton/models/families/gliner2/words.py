"""Texts → words, as gliner2 splits them: links, e-mail addresses, handles, words, and other characters one by one.

gliner2's own pattern takes quadratic time for long runs of characters that may begin an address. Here addresses are
found by their @ first, which gives the same words in linear time.
"""

import re
import sys
import unicodedata
from functools import cache

LOCAL = re.compile("[a-z0-9._%+-]+", re.IGNORECASE)
ADDRESS_END = re.compile(r"@[a-z0-9.-]+\.[a-z]{2,}", re.IGNORECASE)


@cache
def pattern() -> re.Pattern[str]:
    """Compile the pattern without addresses; a combining mark belongs to the word before it."""
    marks = "".join(
        letter for letter in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(letter).startswith("M")
    )
    word = rf"[\w{marks}\u200c\u200d]"
    return re.compile(rf"(?P<link>https?://\S+|www\.\S+)|@[a-z0-9_]+|{word}+(?:[-_]{word}+)*|\S", re.IGNORECASE)


def word_spans(text: str) -> list[tuple[int, int]]:
    """Return start and end of each word in the text, in code points."""
    split, found, at = pattern(), [], 0
    for start, sign, end in _addresses(text):
        for match in split.finditer(text, at):
            if match.start() >= start:
                break
            found.append(match.span())
            at = match.end()
        first = split.search(text, at)
        if first is not None and start <= first.start() < sign and first.lastgroup != "link":
            found.append((first.start(), end))
            at = end
    found += [match.span() for match in split.finditer(text, at)]
    return found


def _addresses(text: str) -> list[tuple[int, int, int]]:
    """Return, for each address: the start of the characters before the @, the @, and the end."""
    if "@" not in text:
        return []
    ends = ((run, ADDRESS_END.match(text, run.end())) for run in LOCAL.finditer(text))
    return [(run.start(), run.end(), end.end()) for run, end in ends if end is not None]
