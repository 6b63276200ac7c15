"""Texts in words and pieces: offsets in the text, windows, and results at their edges."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sie_triton.contract import Label
from sie_triton.errors import InputError
from sie_triton.models.families.gliclass import GliclassTokenizer
from sie_triton.models.families.gliner2 import Gliner2Tokenizer
from sie_triton.models.families.stablebridge_pruner import PassageTokenizer
from sie_triton.models.inputs.limits import LIMITS
from sie_triton.models.inputs.text import Unreadable
from sie_triton.models.inputs.windows import WindowProcessor
from sie_triton.models.inputs.words import Pieces, Words
from sie_triton.pipeline.stages.preprocess import Preprocess
from sie_triton.records.status import StatusWriter
from tests.support.extraction import Extractor
from tests.support.gliners import LABELS, save_gliner
from tests.support.stages import asked, run, spec

SCRAPS = [
    "Ada Lovelace",
    "Größe",
    "e\u0301te\u0301",  # combining marks
    "👩‍👩‍👧",
    "🇩🇪",
    "日本語",
    "مرحبا بالعالم",
    "שלום",
    "\u202eright\u202c",
    "e-mail_adress",
    "1.5 €",
    "[x]",
    "\u200b",
    "\ufeff",
    "\x01",
    "naïve",
    "a" * 60,
]
SPACES = [" ", "  ", "\r\n", "\n\n", "\t", "\u00a0", ""]


def documents(count, seed=1, longest=36):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        parts = rng.integers(0, longest)
        yield "".join(rng.choice(SCRAPS) + rng.choice(SPACES) for _ in range(parts))


@pytest.fixture(scope="module")
def gliner(tmp_path_factory, minilm_directory):
    """A model that reads 12 words at once, so that most documents are split into pieces."""
    root = tmp_path_factory.mktemp("gliner")
    save_gliner(root, minilm_directory, max_len=12, max_width=3, num_rnn_layers=0)
    return Extractor("gliner", root / "model")


def pieces_of(extractor, text):
    """Return (start, end) of each piece in the text."""
    prompt = extractor.processor._prompt(tuple(Label(label) for label in LABELS))
    (words,) = extractor.processor._words.words([text])
    spans = words.spans.tolist()
    found = extractor.processor._pieces.of(words, extractor.processor._room(prompt))
    return [(spans[first][0], spans[end - 1][1]) for first, end in found if end > first]


def test_entities_of_a_document_match_those_of_its_pieces(gliner):
    """An entity is where its text is; those of a document are what its pieces have as texts of their own, told once."""
    texts, labels = list(documents(100)), LABELS[:2]
    options: Any = {"threshold": 0.5, "flat_ner": False, "multi_label": True}
    num_pieces = num_found = 0
    for start in range(0, len(texts), 50):
        some = texts[start : start + 50]
        together = gliner(some, labels, **options)
        bounds = [pieces_of(gliner, text) for text in some]
        cut = [text[a:b] for text, places in zip(some, bounds, strict=True) for a, b in places]
        by_piece = iter(gliner(cut, labels, **options))
        for text, places, found in zip(some, bounds, together, strict=True):
            told = [(each["start"], each["end"], each["label"]) for each in found["entities"]]
            assert [text[a:b] for a, b, _ in told] == [each["text"] for each in found["entities"]]
            assert len(set(told)) == len(told)
            possible = {
                (a + each["start"], a + each["end"], each["label"]): each["score"]
                for a, _ in places
                for each in next(by_piece)["entities"]
            }
            assert set(told) <= set(possible)
            for start, end, label in set(possible) - set(told):  # a higher score overlaps it
                best = max(each["score"] for each in found["entities"] if each["start"] < end and start < each["end"])
                assert best >= possible[start, end, label] - 1e-4
            num_pieces += len(places)
            num_found += len(told)
    assert num_pieces > 2 * len(texts)
    assert num_found > 2 * len(texts)


def words_of(*tokens):
    """Make words of these numbers of tokens; their offsets in the text do not matter."""
    starts = np.concatenate([[0], np.cumsum(tokens)]).astype(np.int64)
    return Words(np.zeros((len(tokens), 2), np.int32), np.zeros(int(starts[-1]), np.int32), starts)


@pytest.mark.parametrize(
    ("tokens", "room", "expected"),
    [
        ((), 10, [(0, 0)]),
        ((1, 1, 1), 10, [(0, 3)]),
        ((1,) * 10, 100, [(0, 4), (2, 6), (4, 8), (6, 10)]),  # four words, two of them also in the next piece
        ((5, 5, 5), 5, [(0, 1), (1, 2), (2, 3)]),
        ((2, 99, 2), 4, [(0, 1), (1, 2), (2, 3)]),  # a word that is too long is a piece of its own
        ((2, 1, 1, 2), 4, [(0, 3), (2, 4)]),
    ],
)
def test_pieces_overlap_and_leave_nothing_out(tokens, room, expected):
    assert list(Pieces(4, 100, 2).of(words_of(*tokens), room)) == expected


@pytest.mark.parametrize("long", ["x" * 20_000, "-".join(["ab"] * 1000)], ids=["one unknown token", "many tokens"])
def test_a_word_longer_than_a_piece_keeps_its_offsets(gliner, long):
    """Truncation leaves room for the prompt and the text around it; the model fails beyond 512 tokens."""
    found = gliner([f"Ada {long} was"], LABELS, threshold=0)[0]["entities"]
    assert {each["start"] for each in found} <= {0, 4, 5 + len(long)}
    assert all(each["text"] in f"Ada {long} was" for each in found)


@pytest.mark.usefixtures("tokenizers_made_here")
def test_a_text_of_more_characters_than_are_read_is_refused_by_name(tmp_path, minilm_directory):
    save_gliner(tmp_path, minilm_directory, num_rnn_layers=0)
    of_gliner = spec(weights=str(tmp_path / "model"), family="gliner", tasks=("extract",), dims={})
    stage = Preprocess(of_gliner, StatusWriter(tmp_path, "m", "preprocess", 0))
    long, short = (
        asked("extract", text=["Ada", "a " * half], labels=["person"])
        for half in (LIMITS.max_text_characters // 2 + 1, 9)
    )
    refused, good = run(stage, [long, short])
    stage.close()
    assert str(refused) == "text[1]: has 2000002 characters; send at most 2000000, and a longer text in parts"
    assert len(good["lengths"]) == 2


READERS = {
    "gliner2": Gliner2Tokenizer._read,
    "windows": WindowProcessor._token_ids,
    "gliclass": lambda reader, texts: GliclassTokenizer.encode(reader, [("", text) for text in texts]),
    "pruner": lambda reader, texts: PassageTokenizer.encode(reader, [("", text) for text in texts]),
}


@pytest.mark.parametrize("name", READERS)
def test_the_limit_comes_before_any_work(name):
    with pytest.raises(Unreadable, match="has 2000001 characters; send at most 2000000"):
        READERS[name](
            SimpleNamespace(_tokenizer=None, _words=SimpleNamespace(tokenizer=None)),
            ["a" * (LIMITS.max_text_characters + 1)],
        )


def test_labels_that_take_too_many_tokens_are_refused_by_number(gliner):
    with pytest.raises(InputError, match=r"labels: take \d+ tokens; this model reads at most 256"):
        gliner(["Ada"], [f"a label that is number {i}" for i in range(100)])
    with pytest.raises(InputError, match="labels: take"):
        gliner(["Ada"], ["x " * 450])
    with pytest.raises(InputError, match=r"labels\[1\]: has 10000 characters; send at most 1000"):
        gliner(["Ada"], ["x", "x " * 5000])


def test_a_marker_in_a_text_or_a_label_is_text(gliner):
    """gliner would take it for an additional label."""
    texts = ["<<ENT>> Ada <<SEP>> in <<ENT>> London"]
    assert {each["label"] for each in gliner(texts, ["person", "<<ENT>>"], threshold=0)[0]["entities"]} <= {
        "person",
        "<<ENT>>",
    }


@pytest.mark.parametrize("text", ["", " ", "\u200b", "\x01\x02"])
def test_a_text_without_words_has_no_entities(gliner, text):
    assert gliner([text, "Ada"], LABELS, threshold=0)[0]["entities"] == []


def test_requests_with_different_labels_and_options_share_a_pass(gliner):
    requests = [
        (["Ada Lovelace in London", "one"], ["person"], {"threshold": 0.2}),
        (["Ada Lovelace in London"], list(LABELS), {"flat_ner": False, "multi_label": True}),
        (["Größe 👩‍👩‍👧 " * 20], ["größe", "日"], {"label_thresholds": '{"日": 0.99999}', "threshold": 0.1}),
        ([""], ["x", "x", "y"], {}),
    ]
    together = gliner.extract(requests)
    alone = [gliner.extract([request])[0] for request in requests]
    for ours, theirs in zip(together, alone, strict=True):
        for found, expected in zip(ours, theirs, strict=True):
            assert [(each["start"], each["end"], each["label"]) for each in found["entities"]] == [
                (each["start"], each["end"], each["label"]) for each in expected["entities"]
            ]
    assert any(each["label"] == "größe" for each in together[2][0]["entities"])
    assert all(each["score"] > 0.9999 for each in together[2][0]["entities"] if each["label"] == "日")
