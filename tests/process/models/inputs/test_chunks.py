"""A long text is split into chunks, each of which the model reads whole."""

from dataclasses import replace
from itertools import pairwise

import pytest

from sie_triton.errors import InputError
from sie_triton.models.inputs.chunks import Chunking, Splitter
from sie_triton.models.inputs.limits import LIMITS
from sie_triton.models.inputs.prompt import Prompt
from sie_triton.models.inputs.text import Unreadable
from tests.process.models.inputs.test_cutting import LONG, TOKENIZERS

LENGTH = 48
PROMPT = Prompt("the text: ", "!")
MIXED = "the tokens, of a text;\n\nare 日本語の文章 e\u0301 👩‍👩‍👧 [SEP] tokenizers " * 9
WORDS = LONG["words"][:3000]


@pytest.fixture(params=["right", "left"], autouse=True)
def side(request):
    """The side on which all TOKENIZERS would cut."""
    for tokenizer in TOKENIZERS.values():
        tokenizer.enable_truncation(LENGTH, direction=request.param)


def tokens(kind: str, text: str) -> int:
    encoding = TOKENIZERS[kind].encode(PROMPT.around(text))
    return sum(sum(part.attention_mask) for part in (encoding, *encoding.overflowing))


def splitter(kind: str, size: int, overlap: int = 0, limits=LIMITS) -> Splitter:
    return Splitter(TOKENIZERS[kind], PROMPT, Chunking(size, overlap), limits)


@pytest.mark.parametrize("text", [MIXED, WORDS, "日本語の文章。" * 90, "tokenizers" * 9 + " x" * 90, " a  \n" * 300])
@pytest.mark.parametrize("overlap", [0, 5])
@pytest.mark.parametrize("kind", TOKENIZERS)
def test_chunks_hold_the_whole_text_and_none_is_too_long(kind, overlap, text):
    spans = splitter(kind, 40, overlap).spans(text)
    assert len(spans) > 1
    assert all(tokens(kind, text[start:end]) <= 40 for start, end in spans)
    for (start, end), (following, its_end) in pairwise(spans):
        assert start < following
        assert end < its_end
        assert not text[end:following].strip()
        assert overlap or end <= following
    assert (spans[0][0], spans[-1][1]) == (0, len(text.rstrip()))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_chunks_end_between_words_and_share_some(kind):
    spans = splitter(kind, 40, 5).spans(WORDS)
    assert {*WORDS.split()} >= {word for start, end in spans for word in WORDS[start:end].split()}
    own = tokens(kind, "")
    for (_, end), (following, _) in pairwise(spans):
        assert WORDS[following:end].strip()
        assert tokens(kind, WORDS[following:end]) - own <= 5 + 1  # the first token may be another without its neighbour


def test_a_text_that_fits_is_one_chunk_with_its_spaces():
    assert [splitter("WordPiece", 40).spans(text) for text in ("", " ", "  a text ")] == [[(0, 0)], [(0, 1)], [(0, 9)]]


def test_chunks_are_no_longer_than_the_model_reads():
    spans = splitter("Unigram", 1000).spans(WORDS)
    assert max(tokens("Unigram", WORDS[start:end]) for start, end in spans) in (LENGTH - 1, LENGTH)


@pytest.mark.parametrize(
    ("size", "overlap", "field"),
    [(3, 0, "chunk_tokens"), (40, 18, "chunk_overlap"), (40, 40, "chunk_overlap")],
)
def test_chunks_without_room_are_refused(size, overlap, field):
    with pytest.raises(InputError) as caught:
        splitter("WordPiece", size, overlap)
    assert caught.value.field == field


def test_a_character_of_more_tokens_than_a_chunk_is_refused():
    size = tokens("BPE of bytes, GPT-2", "") + 2
    with pytest.raises(InputError) as caught:
        splitter("BPE of bytes, GPT-2", size).spans("a 👩 b")
    assert caught.value.field == "chunk_tokens"


def test_a_text_of_too_many_chunks_is_refused():
    short = replace(LIMITS, max_window_tokens=400)
    assert len(splitter("WordPiece", 40, 0, short).spans(WORDS[:300])) > 1
    with pytest.raises(Unreadable):
        splitter("WordPiece", 40, 0, short).spans(WORDS)


@pytest.mark.parametrize(("name", "value"), [("chunk_overlap", 2), ("late_chunking", True)])
def test_parameters_of_no_chunks_are_refused(name, value):
    assert Chunking.read({"chunk_tokens": 8, "chunk_overlap": 2}, {}) == Chunking(8, 2)
    assert Chunking.read({"chunk_tokens": 8}, {"late_chunking": True}) == Chunking(8, 0, is_late=True)
    assert Chunking.read({"is_query": True}, {"late_chunking": True}) is None
    with pytest.raises(InputError) as caught:
        Chunking.read({name: value}, {name: value})
    assert caught.value.field == name


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_each_token_of_a_whole_text_is_in_one_chunk(kind):
    TOKENIZERS[kind].enable_truncation(4000)
    late = Splitter(TOKENIZERS[kind], PROMPT, Chunking(40, is_late=True))
    for text in (MIXED[:400], WORDS, "", "日本語の文章。" * 20):
        places = late.places(text)
        assert [(start, end) for start, end, *_ in places] == late.spans(text)
        tokens_of = [each[2:] for each in places]
        assert (tokens_of[0][0], tokens_of[-1][1]) == (0, len(TOKENIZERS[kind].encode(PROMPT.around(text)).ids))
        assert all(first < last for first, last in tokens_of)
        assert all(last <= first for (_, last), (first, _) in pairwise(tokens_of))


def test_a_text_that_is_not_read_whole_has_no_late_chunks():
    late = Splitter(TOKENIZERS["WordPiece"], PROMPT, Chunking(40, is_late=True))
    with pytest.raises(Unreadable):
        late.places(WORDS)
