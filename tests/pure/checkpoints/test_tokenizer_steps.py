"""What a tokenizer.json may make of a text is known before a text goes through it."""

import json
import string
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers

from sie_triton.checkpoints.files import Fields
from sie_triton.checkpoints.limits import LIMITS, FileLimits
from sie_triton.checkpoints.tokenizer_steps import check_tokenizer, growth, steps_of
from sie_triton.errors import LoadError
from sie_triton.models.inputs.growth import check_grown, check_growth
from sie_triton.models.inputs.limits import LIMITS as INPUT_LIMITS
from sie_triton.models.inputs.text import Unreadable

N = normalizers


def growth_of(steps: Sequence[Any]) -> float:
    return growth(steps_of(Fields("here", json.loads(N.Sequence(list(steps)).__getstate__()))))


SHORT = st.text("abé ", max_size=4)
REPLACE = st.builds(
    N.Replace, st.one_of(SHORT, st.sampled_from([*map(Regex, (r"\s+", "a|b{2,}", "(?=a)", "a{1}?"))])), SHORT
)
STEP = st.one_of(
    REPLACE, REPLACE, st.builds(N.Prepend, SHORT), st.sampled_from([N.NFD(), N.NFKC(), N.ByteLevel(), N.Lowercase()])
)


@given(st.lists(STEP, max_size=5), st.text("abéİﷺ中 ", min_size=1, max_size=12))
def test_no_text_becomes_longer_than_foretold(steps, text):
    try:
        made = N.Sequence(steps).normalize_str(text)
    except BaseException as exc:  # a panic of the library, which is no Exception
        assume(type(exc).__name__ != "PanicException")
        raise
    assert len(made) <= growth_of(steps) * len(text)


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [N.BertNormalizer()],
        [N.Prepend("▁"), N.Replace(" ", "▁")],
        [N.NFC(), N.Replace(Regex(r"\s+"), " "), N.Lowercase()],
        [N.Strip(), N.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "), N.NFC()],
        [
            N.BertNormalizer(),
            *(N.Replace(each, f" {each} ") for each in string.punctuation),
            N.Replace(Regex(r"\s+"), " "),
        ],
    ],
)
def test_normalizers_of_known_models_are_not_measured_with_each_text(steps):
    assert growth_of(steps) <= INPUT_LIMITS.max_usual_growth


HUNDREDFOLD = [{"type": "Replace", "pattern": {"String": a}, "content": b * 100} for a, b in ("ab", "bc", "cd", "de")]
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
TOKEN = {"SpecialToken": {"id": "x", "type_id": 0}}


def template(*pieces: Any, ids: Sequence[int] = (1,)) -> dict[str, Any]:
    special = {"x": {"id": "x", "ids": list(ids), "tokens": ["x"] * len(ids)}}
    return {"type": "TemplateProcessing", "single": list(pieces), "pair": [], "special_tokens": special}


def nested(step: Any, depth: int) -> Any:
    return nested({"type": "Sequence", "normalizers": [step]}, depth - 1) if depth else step


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": HUNDREDFOLD}}, "normalizer: may make 100000000 characters"),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * LIMITS.max_growth}}, "normalizer: may make"),
        ({"normalizer": {"type": "Sequence", "normalizers": [BYTES] * 5}}, "normalizer: may make 1024 "),
        (
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "Lowercase"}] * (LIMITS.max_steps + 1)}},
            "normalizer",
        ),
        ({"normalizer": nested({"type": "Lowercase"}, 20)}, "normalizer"),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "x" * 30_000}, "content": ""}}, "normalizer: pattern"),
        ({"normalizer": {"type": "Explode"}}, "normalizer: type 'Explode' is unknown"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTES] * 3}}, "pre_tokenizer: may make 64 "),
        ({"post_processor": template(TEXT, TEXT)}, "post_processor: single"),
        ({"post_processor": template(TOKEN, TEXT, ids=[1] * 101)}, "post_processor: single"),
        ({"post_processor": {"type": "Sequence", "processors": [template(*[TOKEN] * 101)]}}, "post_processor: 0:"),
        ({"model": {"type": "WordPiece", "max_input_chars_per_word": 10**6}}, "model: max_input_chars_per_word"),
    ],
)
def test_steps_that_make_too_much_of_a_text_are_refused(changes, key):
    check_tokenizer(Fields("tokenizer.json", {}))
    with pytest.raises(LoadError) as error:
        check_tokenizer(Fields("tokenizer.json", changes))
    assert str(error.value).startswith(f"tokenizer.json: {key}")
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    "limits",
    [{"max_added_tokens": 2}, {"max_added_characters": 5}, {"max_tokens": 2}, {"max_token_characters": 5}],
)
@pytest.mark.parametrize("vocab", [{"ab": 0, "cd": 1, "ef": 2}, [["ab", 0.0], ["cd", 0.1], ["ef", 0.2]]])
def test_numbers_and_lengths_of_tokens_are_limited(limits, vocab):
    file = Fields(
        "here", {"added_tokens": [{"content": each} for each in ("ab", "cd", "ef")], "model": {"vocab": vocab}}
    )
    check_tokenizer(file)
    with pytest.raises(LoadError, match="added_tokens" if "added" in next(iter(limits)) else "vocab"):
        check_tokenizer(file, FileLimits(**limits))


def tokenizer(*steps: Any) -> Tokenizer:
    made = Tokenizer(models.WordLevel({"a": 0}, "a"))
    made.normalizer = N.Sequence(list(steps))
    return made


def test_a_tokenizer_is_refused_before_a_text_goes_through_it(tmp_path):
    check_growth(tokenizer(N.Replace("a", "b" * LIMITS.max_growth)), tmp_path)
    with pytest.raises(LoadError, match="normalizer") as error:
        check_growth(tokenizer(N.Replace("a", "b" * (LIMITS.max_growth + 1))), tmp_path)
    assert error.value.reason == "unsupported"


def test_a_text_of_which_much_becomes_is_refused():
    large = tokenizer(N.Replace("a", "b" * (INPUT_LIMITS.max_usual_growth + 1)))
    check_grown("x" * 100_000, large)
    check_grown("a" * INPUT_LIMITS.free_characters, large)
    with pytest.raises(Unreadable):
        check_grown("a" * (INPUT_LIMITS.free_characters + 1), large)
    check_grown("a" * 100_000, tokenizer(N.Replace("a", "b" * INPUT_LIMITS.max_usual_growth)))
