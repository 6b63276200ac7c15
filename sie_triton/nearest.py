"""Suggest the known name that a misspelt name most resembles."""

from collections.abc import Iterable
from difflib import get_close_matches

# Longer names get no suggestion: the comparison is quadratic in the length.
MAX_LENGTH = 200

# Minimum similarity, from 0 to 1. One wrong letter in a name of five leaves 0.8.
SIMILARITY = 0.8


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" to end a sentence with; empty if `known` has no similar name.

    >>> did_you_mean("BAAI/bge-m4", ["BAAI/bge-m3", "org/name"])
    '; did you mean BAAI/bge-m3?'
    >>> did_you_mean("x", ["BAAI/bge-m3"])
    ''
    """
    by_letters = {each.lower(): each for each in known}
    found = get_close_matches(name[:MAX_LENGTH].lower(), by_letters, 1, SIMILARITY)
    return f"; did you mean {by_letters[found[0]]}?" if found else ""
