"""Bounds of the texts that the steps of a tokenizer.json make: a small file could make gigabytes of one letter.

A step is a normalizer, a pre-tokenizer or a post-processor. Standard library only.
"""

import re
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from sie_triton.checkpoints.files import Fields, shortened
from sie_triton.checkpoints.limits import LIMITS, FileLimits

# The longest that each makes of a character, as İ, 중 or ﷺ.
FACTORS = {"Strip": 1, "StripAccents": 1, "Nmt": 1, "Lowercase": 2, "NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18}
FACTORS |= {"BertNormalizer": 3, "ByteLevel": 4}
OF_SPLITS = {"ByteLevel": 4, "Metaspace": 2}


# Patterns of which a match is not empty: alternatives of characters, classes and sets, which may be repeated.
_ONE = r"(?:\\[sSdDwWnrt]|\[(?:\\.|[^\\\[\]&])+\]|[^\\\[\](){}|?*+.^$])(?:\+|\{[1-9][0-9]*,?[0-9]*\})?(?![?*+{])"
NOT_EMPTY = re.compile(rf"(?:{_ONE})+(?:\|(?:{_ONE})+)*")


def check_tokenizer(tokenizer: Fields, limits: FileLimits = LIMITS) -> None:
    """Raise LoadError if a tokenizer.json can make much more of a text than it has, or is too large to be read."""
    for key, most in (("normalizer", limits.max_growth), ("pre_tokenizer", limits.max_split_growth)):
        steps = _steps(tokenizer, key)
        grown = growth(steps) if key == "normalizer" else _product(steps)
        if grown > most:
            raise tokenizer.unserved(f"{key}: may make {grown:.0f} characters of one; at most {most} are allowed")
    for step in _steps(tokenizer, "post_processor"):
        _check_around(step)
    _check_size(tokenizer, "added_tokens", _contents(tokenizer), limits.max_added_tokens, limits.max_added_characters)
    model = tokenizer.fields("model")
    _check_size(tokenizer, "model: vocab", _vocabulary(model), limits.max_tokens, limits.max_token_characters)
    model.integer("max_input_chars_per_word", 0, most=limits.max_word_characters)


def growth(steps: Sequence[Fields]) -> float:
    """Return how many characters the normalizers `steps` make of one at most.

    From the last step to the first: `other` is what the steps after it make of a character, `of` the same for those
    that some of them replace.
    """
    of: dict[str, float] = {}
    other = 1.0
    for step in reversed(steps):
        kind = step.text("type")
        if kind == "Replace":
            made, pattern = _total(step.text("content"), of, other), step.fields("pattern")
            text = pattern.text("String", "")
            if text:
                share = made / len(text)
                of |= {letter: max(of.get(letter, other), share) for letter in set(text)}
                continue
            # An empty match may be before, between and behind all characters: up to two for each character.
            is_of_letters = pattern.has("Regex") and NOT_EMPTY.fullmatch(pattern.text("Regex"))
            of = {letter: max(each, made) if is_of_letters else each + 2 * made for letter, each in of.items()}
            other = max(other, made) if is_of_letters else other + 2 * made
        elif kind == "Prepend":
            added = _total(step.text("prepend"), of, other)
            of, other = {letter: each + added for letter, each in of.items()}, other + added
        elif kind == "Precompiled":
            of, other = {}, _longest(step) * max(other, *of.values(), 0)
        elif kind in FACTORS:
            if FACTORS[kind] > 1:
                of, other = {}, FACTORS[kind] * max(other, *of.values(), 0)
        else:
            raise step.unserved(f"type {shortened(kind)} is unknown")
    return max(other, *of.values(), 0)


def steps_of(step: Fields) -> list[Fields]:
    """Return the steps of a step, which may be a sequence of others. Raise LoadError if they are too many."""
    found = list(islice(_steps_in(step, LIMITS.max_step_depth), LIMITS.max_steps + 1))
    if len(found) > LIMITS.max_steps:
        raise step.unserved(f"may have at most {LIMITS.max_steps} steps")
    return found


def _steps_in(step: Fields, depth: int) -> Iterator[Fields]:
    nested = next(filter(step.has, ("normalizers", "pretokenizers", "processors")), None)
    if nested is None:
        yield from [step] if step.values else ()
        return
    values = step.values[nested]
    if not isinstance(values, list) or not depth:
        raise step.unserved(f"{nested}: must be a list, at most {LIMITS.max_step_depth} deep")
    for i, each in enumerate(values):
        yield from _steps_in(Fields.of(f"{step.where}: {i}", each), depth - 1)


def _steps(tokenizer: Fields, key: str) -> list[Fields]:
    found = steps_of(tokenizer.fields(key))
    for step in found:
        pattern = step.values.get("pattern")
        written = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(written, str) and len(written) > LIMITS.max_pattern_characters:
            raise step.unserved(f"pattern: may have at most {LIMITS.max_pattern_characters} characters")
    return found


def _product(steps: Sequence[Fields]) -> int:
    made = 1
    for step in steps:
        made *= OF_SPLITS.get(step.text("type"), 1)
    return made


def _total(text: str, of: Mapping[str, float], other: float) -> float:
    return sum(of.get(letter, other) for letter in text)


def _longest(step: Fields) -> int:
    """Return the length of the longest text that a character map of SentencePiece has in place of one."""
    try:
        data = b64decode(step.text("precompiled_charsmap"))
    except ValueError as exc:
        raise step.corrupt("precompiled_charsmap: must be base64") from exc
    texts = data[4 + int.from_bytes(data[:4], "little") :].split(b"\0")
    return max(1, *(len(text.decode(errors="replace")) for text in texts))


def _check_around(step: Fields) -> None:
    """Raise LoadError if a post-processor repeats a text, or puts many tokens around it."""
    if step.text("type") != "TemplateProcessing":
        return
    tokens = step.fields("special_tokens")
    for key in ("single", "pair"):
        pieces = step.values.get(key)
        if not isinstance(pieces, list) or len(pieces) > LIMITS.max_around_tokens:
            raise step.unserved(f"{key}: must be a list of at most {LIMITS.max_around_tokens} pieces")
        read = [Fields.of(f"{step.where}: {key}", piece) for piece in pieces]
        texts = [piece.fields("Sequence").text("id") for piece in read if piece.has("Sequence")]
        around = [piece.fields("SpecialToken").text("id") for piece in read if piece.has("SpecialToken")]
        num_tokens = sum(len(tokens.fields(each).values.get("ids") or ()) for each in around)
        if len(set(texts)) < len(texts) or num_tokens > LIMITS.max_around_tokens:
            most = LIMITS.max_around_tokens
            raise step.unserved(f"{key}: must have each text once, and at most {most} tokens around them")


def _contents(tokenizer: Fields) -> Sequence[Any]:
    added = tokenizer.values.get("added_tokens")
    return [each.get("content") for each in added if isinstance(each, dict)] if isinstance(added, list) else ()


def _vocabulary(model: Fields) -> Sequence[Any]:
    """Return the tokens: keys of an object, or of pairs of a token and its score."""
    vocab = model.values.get("vocab")
    if isinstance(vocab, list):
        return [each[0] for each in vocab if isinstance(each, list) and each]
    return list(vocab) if isinstance(vocab, dict) else ()


def _check_size(tokenizer: Fields, key: str, texts: Sequence[Any], most: int, characters: int) -> None:
    if len(texts) > most or sum(len(text) for text in texts if isinstance(text, str)) > characters:
        raise tokenizer.unserved(f"{key}: may have at most {most} tokens of {characters} characters together")
