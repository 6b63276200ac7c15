"""Requests' parts to features, with a processor whose tokens are letters."""

from collections.abc import Sequence

import numpy as np
import pytest

from sie_triton.contract import Features, Part, Ragged
from sie_triton.contract.spec import Profile
from sie_triton.errors import InputError
from sie_triton.models.inputs import KINDS, Processor
from sie_triton.models.inputs.prompt import Prompt, Prompted, prompt_of
from sie_triton.models.inputs.request_parts import Framed, blame, check_read, features_of

TEXT = KINDS["text"]


class Letters(Processor):
    """Processor with one token a letter; queries in capitals if it has roles, and `kept_out` of each item: its prompt's
    size.
    """

    def __init__(self, *, has_roles: bool = False) -> None:
        self.has_roles = has_roles  # type: ignore[misc]
        self.calls: list[bool] = []

    def encode(self, framed: Sequence[str], *, is_query: bool) -> Features:
        self.calls.append(is_query)
        if any("!" in text for text in framed):
            raise InputError("the text is wrong")
        texts = [text.upper() if is_query and self.has_roles else text for text in framed]
        letters = np.array([ord(letter) for letter in "".join(texts)], np.int32)
        return {"letters": Ragged(letters, np.array([len(text) for text in texts], np.int32))}

    def finish(self, features: Features, frame: Prompt) -> Features:
        lengths = features["letters"].lengths
        assert lengths is not None
        return {**features, "kept_out": Ragged(np.full(len(lengths), frame.size, np.int32))}


def framed(*texts: str, before: str = "", name: str = "text", is_query: bool | None = None) -> Framed:
    return Framed(Part(name, list(texts), is_query=is_query), Prompt(before), TEXT)


def read(features: Features) -> tuple[list[str], list[int]]:
    letters, lengths = features["letters"]
    assert lengths is not None
    pieces = np.split(letters, np.cumsum(lengths)[:-1])
    return ["".join(map(chr, piece)) for piece in pieces], features["kept_out"].values.tolist()


REQUESTS = [
    [framed("a", "bb", before="d:"), framed("who", before="query:", name="query", is_query=True)],
    [framed("ccc")],
    [framed("where", before="q:", is_query=True)],
]


@pytest.mark.parametrize(
    ("has_roles", "query", "where", "calls"),
    [(False, "query:who", "q:where", [False]), (True, "QUERY:WHO", "Q:WHERE", [False, True])],
)
def test_each_request_keeps_its_parts_order_and_frame(has_roles, query, where, calls):
    """The processor is called once for all requests, or once for all of a role."""
    processor = Letters(has_roles=has_roles)
    found = [read(features) for features in features_of(processor, REQUESTS)]
    assert found == [(["d:a", "d:bb", query], [2, 2, 6]), (["ccc"], [0]), ([where], [2])]
    assert processor.calls == calls


@pytest.mark.parametrize("chunk_size", [1, 4, 5, 1000])
def test_chunks_hold_each_element_once_and_in_order(monkeypatch, chunk_size):
    """Chunks give the same features as the whole."""
    monkeypatch.setattr(type(TEXT), "chunk_size", chunk_size)
    whole = framed("a", "bb", "", "cccccc", "d", before="p:", is_query=True)
    chunks = list(whole.chunks())
    assert [one for chunk in chunks for one in chunk.part.elements] == ["a", "bb", "", "cccccc", "d"]
    assert all(chunk.part.elements for chunk in chunks)
    processor = Letters(has_roles=True)
    apart = [read(features_of(processor, [[chunk]])[0])[0] for chunk in chunks]
    assert [text for texts in apart for text in texts] == read(features_of(processor, [[whole]])[0])[0]


def test_chunk_size_includes_the_prompt_around_each_text(monkeypatch):
    monkeypatch.setattr(type(TEXT), "chunk_size", 6)
    whole = framed("a", "b", "c", "dddd", "e", before="p:")
    assert [chunk.part.elements for chunk in whole.chunks()] == [["a", "b"], ["c", "dddd"], ["e"]]
    assert whole.size == 1 + 1 + 1 + 4 + 1 + 5 * 2


@pytest.mark.parametrize(
    ("lengths", "complaint"), [([1, 0, 1], r"text\[1\]: has no tokens"), ([1, 1, 0], "query: has no tokens")]
)
def test_an_element_without_tokens_is_named_by_the_clients_index(lengths, complaint):
    with pytest.raises(InputError, match=f"^{complaint}"):
        check_read(REQUESTS[0], lengths)
    check_read(REQUESTS[0], [1, 1, 1])


class PanicException(BaseException):
    """Stand-in for the exception of the tokenizer's library."""


class Giving(Letters):
    """Processor that fails on texts with an exclamation mark."""

    def encode(self, framed, *, is_query):
        if any("!" in text for text in framed):
            raise PanicException
        return super().encode(framed, is_query=is_query)


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        ([framed("a", "b!")], r"text\[1\]"),
        ([framed("a"), framed("who!", name="query", is_query=True)], "query"),
    ],
)
def test_an_element_that_breaks_the_tokenizer_is_named(parts, name):
    with pytest.raises(InputError, match=f"^{name}: the model's tokenizer fails on it"):
        blame(Giving(), parts)


def test_a_query_that_cannot_be_shortened_is_named():
    def give_up():
        raise PanicException

    part = Part("text", ["a"], query="who!")
    with pytest.raises(InputError, match=r"^query: the model's tokenizer fails"):
        blame(Letters(), [Framed(part, Prompted(give_up, 4), TEXT)])


PROMPTS = {"query": "q: ", "document": "d: "}
TEMPLATES = {
    "query_template": "{instruction}|{text}?",
    "document_template": "{instruction}d|{text}",
    "query_instruction": "find",
}


@pytest.mark.parametrize(
    ("prompts", "profile", "is_query", "instruction", "expected"),
    [
        (PROMPTS, {}, True, None, "q: x"),
        (PROMPTS, {}, False, None, "d: x"),
        (PROMPTS, {}, None, None, "d: x"),
        ({}, {}, True, None, "x"),
        ({"query": "q "}, {}, None, None, "usual: x"),
        ({"query": "q ", "document": ""}, {}, None, None, "usual: x"),
        ({"document": "d "}, {}, True, None, "x"),
        (PROMPTS, {}, True, "asked: ", "asked: x"),
        (PROMPTS, {}, None, "asked: ", "asked: x"),
        (PROMPTS, {}, False, "", "x"),
        (PROMPTS, TEMPLATES, True, None, "find|x?"),
        (PROMPTS, TEMPLATES, True, "asked", "asked|x?"),
        (PROMPTS, TEMPLATES, True, "", "|x?"),
        (PROMPTS, TEMPLATES, False, None, "d|x"),
        (PROMPTS, TEMPLATES, None, None, "d|x"),
        (PROMPTS, TEMPLATES, False, "asked", "askedd|x"),
        (PROMPTS, {"query_template": "t|{text}"}, False, None, "d: x"),
    ],
)
def test_prompt_precedence_is_template_instruction_then_model_prompts(
    prompts, profile, is_query, instruction, expected
):
    part = Part("text", ["x"], Profile(**profile), is_query, instruction)
    prompt = prompt_of(prompts, "usual: ", part)
    assert prompt.around("x") == expected
    assert prompt.size == len(expected) - 1
