"""Tokenizers that are valid files in a hostile structure."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from sie_triton.checkpoints.files import read_fields
from sie_triton.checkpoints.tokenizer_steps import check_tokenizer
from sie_triton.errors import LoadError
from sie_triton.models.inputs.cutting import encoded
from sie_triton.models.inputs.text import Unreadable
from sie_triton.models.inputs.tokenizer import open_tokenizer, truncating
from tests.fuzz.target import Target, check_line

# Tokens of a text that a model reads, and those around it.
LENGTH = 64

PATTERNS = (
    r"\s+",
    " {2,}",
    "(?=a)",
    "a{1}?",
    "",
    r"\b",
    "(a*)*",
    "a|b",
    "[^a]",
    r"(?i)A",
    ".",
    "a+b",
    r"\p{L}+",
    "x{1000}",
)
LETTERS = st.text("abA éß中ﷺİ-1\n", max_size=8)
LONG = st.builds(lambda text, times: text * times, LETTERS, st.sampled_from([1, 1, 1, 10, 100, 1000]))
PATTERN = st.one_of(
    LETTERS.map(lambda text: {"String": text}), st.sampled_from(PATTERNS).map(lambda each: {"Regex": each})
)
BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def steps(single: SearchStrategy[Any], key: str) -> SearchStrategy[Any]:
    """Return a strategy of a step, or of sequences of steps in each other."""
    several = lambda inner: st.lists(inner, max_size=6).map(lambda each: {"type": "Sequence", key: each})  # noqa: E731
    many = st.builds(lambda each, times: {"type": "Sequence", key: [each] * times}, single, st.sampled_from([20, 250]))
    return st.one_of(st.none(), st.recursive(single, several, max_leaves=8), many)


NORMALIZER = st.one_of(
    st.builds(lambda pattern, content: {"type": "Replace", "pattern": pattern, "content": content}, PATTERN, LONG),
    st.builds(lambda text: {"type": "Prepend", "prepend": text}, LONG),
    st.sampled_from(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "ByteLevel", "Nmt"]).map(
        lambda kind: {"type": kind}
    ),
)
SPLIT = st.one_of(
    st.builds(
        lambda pattern, how, invert: {"type": "Split", "pattern": pattern, "behavior": how, "invert": invert},
        PATTERN,
        st.sampled_from(["Removed", "Isolated", "MergedWithPrevious", "Contiguous"]),
        st.booleans(),
    ),
    st.just(BYTES),
    st.just({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}),
    st.sampled_from(["Whitespace", "Digits", "Punctuation", "BertPreTokenizer"]).map(lambda kind: {"type": kind}),
)
PIECE = st.sampled_from(
    [{"Sequence": {"id": text, "type_id": 0}} for text in "AB"] + [{"SpecialToken": {"id": "x", "type_id": 0}}]
)
PIECES = st.one_of(st.lists(PIECE, max_size=5), st.lists(PIECE, min_size=100, max_size=200))
AROUND = st.builds(
    lambda single, pair, number: {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {"x": {"id": "x", "ids": [1] * number, "tokens": ["x"] * number}},
    },
    PIECES,
    PIECES,
    st.sampled_from([1, 1, 50, 10_000]),
)
ADDED = st.builds(
    lambda number, text, normalized: [
        {
            "id": 3 + i,
            "content": f"<{i}{text}>",
            "normalized": normalized,
            "special": False,
            **dict.fromkeys(("single_word", "lstrip", "rstrip"), False),
        }
        for i in range(number)
    ],
    st.sampled_from([0, 1, 10, 100]),
    LONG,
    st.booleans(),
)
PADDING = st.sampled_from([{"BatchLongest": None}, {"Fixed": 10}, {"Fixed": 10**10}]).map(
    lambda how: {
        "strategy": "BatchLongest" if "BatchLongest" in how else how,
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
)
MODEL = {"type": "WordPiece", "unk_token": "x", "continuing_subword_prefix": "##", "vocab": {"x": 0, "a": 1, "b": 2}}


def tokenizer(normalizer: Any, split: Any, around: Any, added: Any, padding: Any, longest: int) -> dict[str, Any]:
    return {
        "version": "1.0",
        "truncation": None,
        "padding": padding,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": split,
        "post_processor": around,
        "decoder": None,
        "model": {**MODEL, "max_input_chars_per_word": longest},
    }


@contextmanager
def tokenizer_steps(directory: Path) -> Iterator[Target]:
    """Yield the target of tokenizers that are well-formed, and of texts that they read."""
    cases = st.builds(
        tokenizer,
        steps(NORMALIZER, "normalizers"),
        steps(SPLIT, "pretokenizers"),
        steps(AROUND, "processors"),
        ADDED,
        st.one_of(st.none(), PADDING),
        st.sampled_from([100, 100, 10**9]),
    )
    texts = st.builds(lambda text, times: text * times, LETTERS, st.sampled_from([1, 1, 100, 1000]))
    path = directory / "tokenizer.json"

    def run(case: tuple[dict[str, Any], str]) -> None:
        path.write_text(json.dumps(case[0]))
        try:
            check_tokenizer(read_fields(path))
            made = truncating(open_tokenizer(directory), LENGTH)
            (encoding,) = encoded(made, [case[1]])
        except LoadError as exc:
            check_line(exc, 1000)
            raise
        except BaseException as exc:  # a panic of the library, which preprocess turns into an error of the text
            if type(exc).__name__ == "PanicException":
                return
            raise
        assert len(encoding.ids) <= LENGTH

    yield Target(st.tuples(cases, texts), run, (LoadError, Unreadable), memory_bytes=1_000_000_000)
