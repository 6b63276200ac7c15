"""Suggest the known name that a misspelt name most resembles."""

from collections.abc import Iterable
from difflib import get_close_matches

# Longer names get no suggestion: the comparison is quadratic in the length.
MOST = 200


def closest(name: str, known: Iterable[str]) -> str:
    """Return "; similar names: …" to end a sentence with; empty if `known` has no similar name.

    >>> closest("BAAI/bge-m4", ["BAAI/bge-m3", "BAAI/bge-base", "org/name"])
    '; similar names: BAAI/bge-m3, BAAI/bge-base'
    """
    by_letters = {each.lower(): each for each in known}
    found = get_close_matches(name[:MOST].lower(), by_letters, 3, 0.6)
    return f"; similar names: {', '.join(by_letters[each] for each in found)}" if found else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" to end a sentence with; empty if `known` has no similar name.

    >>> did_you_mean("BAAI/bge-m4", ["BAAI/bge-m3", "org/name"])
    '; did you mean BAAI/bge-m3?'
    >>> did_you_mean("x", ["BAAI/bge-m3"])
    ''
    """
    by_letters = {each.lower(): each for each in known}
    # One wrong letter in a name of five leaves a similarity of 0.8.
    found = get_close_matches(name[:MOST].lower(), by_letters, 1, 0.8)
    return f"; did you mean {by_letters[found[0]]}?" if found else ""
