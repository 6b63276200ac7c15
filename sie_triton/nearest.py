"""Suggests the name that a misspelt one was meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches

# No name is longer; the comparison is quadratic in the length.
MAX_LENGTH = 200

# Of 1. One wrong letter in a name of five leaves 0.8.
SIMILARITY = 0.8


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that ends a sentence; empty where nothing of `known` is near.

    >>> did_you_mean("BAAI/bge-m4", ["BAAI/bge-m3", "org/name"])
    '; did you mean BAAI/bge-m3?'
    >>> did_you_mean("x", ["BAAI/bge-m3"])
    ''
    """
    by_letters = {each.lower(): each for each in known}
    found = get_close_matches(name[:MAX_LENGTH].lower(), by_letters, 1, SIMILARITY)
    return f"; did you mean {by_letters[found[0]]}?" if found else ""
