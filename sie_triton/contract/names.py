"""Names of models: SIE's `org/name`, and Triton's `org__name`, because Triton forbids the slash."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase


def triton_name(model: str) -> str:
    """Return the model's name in Triton.

    >>> triton_name("BAAI/bge-m3")
    'BAAI__bge-m3'
    """
    return model.replace("/", "__")


def sie_name(name: str) -> str:
    """Return the model's name in SIE.

    >>> sie_name("BAAI__bge-m3")
    'BAAI/bge-m3'
    """
    return name.replace("__", "/", 1)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern matches the name; without patterns, every name matches.

    >>> matches("BAAI/bge-m3", ["BAAI/*"]), matches("BAAI/bge-m3", []), matches("BAAI/bge-m3", ["intfloat/*"])
    (True, True, False)
    """
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


def enumerated(names: Sequence[str], most: int) -> str:
    """Return the names for a sentence: the first `most`, and the number of the others.

    >>> enumerated(["a", "b", "c"], 3), enumerated(["a", "b", "c"], 1)
    ('a, b, c', 'a and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def is_pattern(text: str) -> bool:
    """Return whether `text` may match several names.

    >>> is_pattern("BAAI/*"), is_pattern("BAAI/bge-m3")
    (True, False)
    """
    return any(character in text for character in "*?[")


def split_profile(model: str) -> tuple[str, str]:
    """Split `org/name:profile`, or `org/name@profile` as SIE's clients have it, into the names of model and profile.

    That of the profile is empty if none is given.

    >>> split_profile("org/name:fast"), split_profile("org/name@fast"), split_profile("org/name:default")
    (('org/name', 'fast'), ('org/name', 'fast'), ('org/name', ''))
    """
    name, _, profile = model.replace("@", ":", 1).partition(":")
    return name, "" if profile == "default" else profile
