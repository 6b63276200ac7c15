"""Words and spans equal those of gliner2, in time linear in the length of the text."""

import numpy as np
import pytest
from gliner2.inference.candidate_decoder import finalize_spans
from gliner2.processing.word_splitter import WhitespaceTokenSplitter

from sie_triton.contract.transforms.overlap import POLICIES, resolved
from sie_triton.models.families.gliner2.words import word_spans

SPLIT = WhitespaceTokenSplitter()

TEXTS = [
    "",
    " \t",
    "mail ada.l+x@math.org, or @ada_l; see https://a.b/c?d=e. And www.x.y!",
    "@foo.bar@x.com",  # the handle ends within the start of an address
    "a@b.co.x@y.zz",
    "é-a.b@x.com",
    "a@b a@b.c a@b.cd a@.cd @@x.yy %@%.%%",
    "https://x@y.zz x@https://y.zz wwww.x@y.zz",
    "e\u0301t\u00e9 क्षि नमस्ते a\u200db snake_case-word --x _ __-_",
    "K@k.K\u212a ſ@ſ.ſſ İ@i.ii ı@x.yy",
    "naïve 😀 日本語 — größe",
]


@pytest.mark.parametrize("text", TEXTS)
def test_words_are_those_of_the_library(text):
    assert word_spans(text) == [(start, end) for _, start, end in SPLIT(text)]


def test_random_characters_are_split_into_the_same_words():
    rng = np.random.default_rng(0)
    letters = [*"ab1.@@.-_%+ é\u0301/:w", "www.", "http://", "@a.bc", "x@y.zz"]
    for _ in range(3000):
        text = "".join(rng.choice(letters, rng.integers(1, 24)))
        assert word_spans(text) == [(start, end) for _, start, end in SPLIT(text)], text


@pytest.mark.timeout(60)  # the library's pattern takes hours for repeated "."
@pytest.mark.parametrize("run", ["a.", ".", "a@", "@a.", "a@a.", "a@b.c", "www.", "a-", "@", "%@a.bc"])
def test_no_text_takes_long(run):
    text = run * (300_000 // len(run))
    word_spans(text)


@pytest.mark.parametrize("policy", ["", *POLICIES])
def test_spans_equal_the_librarys(policy):
    rng = np.random.default_rng(1)
    for _ in range(200):
        num = int(rng.integers(0, 14))
        starts = rng.integers(0, 12, num)
        spans = np.stack([starts, starts + rng.integers(1, 6, num)], 1)
        # Few distinct values, so that ties occur.
        scores = rng.choice(np.array([0.25, 0.5, 0.75, 0.875], np.float32), num)
        rows = [(i, float(score), *span) for i, (score, span) in enumerate(zip(scores, spans.tolist(), strict=True))]
        expected = finalize_spans(rows, overlap_policy=policy or None)
        assert resolved(spans, scores, policy).tolist() == [row[0] for row in expected]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("policy", ["", *POLICIES])
def test_many_spans_do_not_take_long(policy):
    rng = np.random.default_rng(2)
    starts = rng.integers(0, 100_000, 20_000)
    spans = np.stack([starts, starts + rng.integers(1, 9, 20_000)], 1)
    resolved(spans, rng.random(20_000, np.float32), policy)
