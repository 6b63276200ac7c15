"""Strategies of the inputs of a request to a model."""

import json
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from sie_triton.contract import VERBS
from sie_triton.contract.model import Model
from tests.fuzz.damage import damaged, one
from tests.fuzz.trees import PLAIN, changed, to_json
from tests.support.pdfs import written
from tests.support.pictures import pictures
from tests.support.sounds import sounds
from tests.support.unhearable import wav
from tests.support.unreadable import png_header

# Words and signs that tokenizers treat in ways of their own, and sizes at which the stages take other paths.
WRITTEN = (
    "",
    " ",
    "hello",
    "What climbs the wall?",
    "[CLS] [MASK] [SEP] [unused0] ##ing",
    "naïve 😀 日本語 — größe e-mail_adress; [x]",
    "👩‍👩‍👧‍👦\u200d\u202e\ufeff\u0301\u0000\x7f",
    "\r\n\t\v\f",
    "a" * 5000,
    "word " * 700,
    "蔷薇" * 2000,
    "1" * 300,
    "\U000e0001\U0010ffff",
    '{"start": 0, "end": 3}',
    '[{"start": 0, "end": 3, "label": "x"}, {"start": 4, "end": 9}]',
    "[" * 3000,
    "[]",
)
INVALID = (b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\x80" * 50, b"\xf8\x88\x80\x80\x80", b"\0\xff\0")

# Texts that make a request bulk: many, or a long one.
MANY = ([b"a", b"bc"] * 65, [b"long " * 30_000, b"a"])

ENCODED = [text.encode() for text in WRITTEN]
SOUND = st.one_of(one(ENCODED), one(ENCODED), st.text(max_size=40).map(lambda text: text.encode(errors="replace")))
TEXTS = st.one_of(SOUND, SOUND, SOUND, SOUND, one(INVALID), damaged(ENCODED))

NAMES = st.one_of(one((b"person", b"city", "größe".encode(), b"a b")), one((b"person", b"city")), TEXTS)

PLACES = '[{"start": 0, "end": 3, "label": "x"}, {"start": 3, "end": 5}]'
KNOWN = st.one_of(
    one((PLACES.encode(), b"[]")),
    one((PLACES.encode(), b"[]")),
    changed([json.loads(PLACES)], PLAIN, is_plain=True).map(to_json),
    TEXTS,
)
OF_TENSORS = {"labels": NAMES, "entities": KNOWN}

FILES: Mapping[str, Sequence[bytes]] = {
    "image": (*pictures(((40, 30), (33, 33))), png_header(9, 9), written(), b"", b"no image"),
    "audio": (*sounds((0.05, 0.1)), wav(), wav(channels=7), b"", b"no sound"),
}


def elements_of(kind: str) -> SearchStrategy[bytes]:
    """Return a strategy of elements of a kind of input."""
    if kind in FILES:
        return st.one_of(one(FILES[kind]), damaged(FILES[kind]))
    return OF_TENSORS.get(kind, TEXTS)


def inputs_of(model: Model, verb: str) -> SearchStrategy[dict[str, list[bytes]]]:
    """Return a strategy of the inputs of a request: mostly all that it needs, and as many elements in each."""
    tensors = [tensor.name for tensor in VERBS[verb].inputs(model.spec.inputs)]
    of_items = {"text", "image", "audio", "entities"}

    def filled(number: int, given: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        return {name: (each * number)[:number] if name in of_items else each for name, each in given.items()}

    def lists(name: str, least: int, most: int) -> SearchStrategy[list[bytes]]:
        return st.lists(elements_of(name.removeprefix("query_")), min_size=least, max_size=most)

    of_one = {name: lists(name, 1, 1 if name == "query" else 4) for name in tensors}
    if not model.extraction.labels:
        of_one.pop("labels", None)
    of_one.pop("entities" if not model.extraction.entities else "", None)
    fitting = st.builds(filled, st.integers(1, 3), st.fixed_dictionaries(of_one))
    of_one_kind = [
        fitting.map(lambda given, only=name: _without(given, of_items - {only})) for name in model.spec.inputs
    ]
    any_inputs = st.fixed_dictionaries({}, optional={name: lists(name, 0, 4) for name in tensors})
    many = fitting.map(lambda given: {**given, "text": MANY[verb == "encode"]} if "text" in given else given)
    some_are_large = st.one_of(*[fitting] * 6, many)
    return st.one_of(*of_one_kind, *of_one_kind, *of_one_kind, any_inputs, some_are_large)


def _without(given: dict[str, list[bytes]], names: set[str]) -> dict[str, list[bytes]]:
    return {name: each for name, each in given.items() if name not in names or name == "entities"}
