"""The preprocess stage through its public interface, with a real tokenizer."""

from unittest.mock import patch

import numpy as np
import pytest

from sie_triton.contract import Part
from sie_triton.errors import InputError, ModelError, SIEError
from sie_triton.models.families.shared import token_pooling
from sie_triton.models.inputs import KINDS
from sie_triton.models.inputs.prompt import Prompt, Prompted
from sie_triton.models.inputs.request_parts import Framed, is_bulk
from sie_triton.pipeline.stages.preprocess import Preprocess
from sie_triton.pipeline.stages.request import DEFERRED
from sie_triton.records.status import StatusWriter
from sie_triton.system.telemetry.options import Telemetry
from sie_triton.system.telemetry.request_log import RequestLog
from tests.support.stages import FakeRequest, asked, run, spec


@pytest.mark.parametrize(
    ("text", "parameters", "complaint"),
    [
        (None, {}, "text: missing"),
        (np.zeros((1, 0), object), {}, "text: is empty"),
        (np.array([b"a"], object), {}, r"text: has shape \[1\]"),
        (np.array([[b"ok", b"a\xff"]], object), {}, r"text\[1\]: not valid UTF-8 \(byte 0xff at 1\)"),
        (np.array([[b"ok"]], object), {"nope": 1}, "parameter nope: unknown"),
    ],
)
def test_invalid_inputs_are_refused_with_their_field(tmp_path, minilm_directory, text, parameters, complaint):
    stage = Preprocess(spec(weights=str(minilm_directory)), StatusWriter(tmp_path, "m", "preprocess", 0))
    bad, good = run(stage, [asked("encode", parameters, text=text), asked("encode", text=["hi"])])
    with pytest.raises(SIEError, match=complaint):
        raise bad
    assert good["input_ids"].tolist() == [101, 7632, 102]
    stage.close()


@pytest.mark.parametrize("is_cold", [True, False])
def test_the_deadline_counts_from_the_arrival_also_beside_a_load(tmp_path, minilm_directory, is_cold):
    stage = Preprocess(spec(weights=str(minilm_directory)), StatusWriter(tmp_path, "m", "preprocess", 0))
    if not is_cold:
        stage.warm_up()
    request = asked("encode", text=["hi"])
    request.timeout_us, request.arrived_ns = 60_000_000, request.arrived_ns - 30 * 10**9
    (answer,) = stage.execute([request])
    context = request.answer(answer)["context"]
    assert request.is_deferred == is_cold
    assert (context.arrived_ns, context.deadline_ns) == (request.arrived_ns, request.arrived_ns + 60 * 10**9)
    stage.close()


def test_preprocess_is_the_same_for_small_and_bulk_requests(tmp_path, minilm_directory):
    stage = Preprocess(
        spec(weights=str(minilm_directory), max_sequence_length=256), StatusWriter(tmp_path, "m", "preprocess", 0)
    )
    stage.warm_up()
    texts = [f"text number {i} " + "word " * (i % 40) for i in range(400)]
    bulk = asked("encode", text=texts)
    singles = [asked("encode", text=[t]) for t in texts]
    (together,) = run(stage, [bulk])
    apart = run(stage, singles)
    assert bulk.is_deferred
    assert not singles[0].is_deferred
    assert together["input_ids"].tolist() == np.concatenate([a["input_ids"] for a in apart]).tolist()
    assert together["lengths"].tolist() == [a["lengths"][0] for a in apart]
    assert together["cost"][0] == together["lengths"].sum() == len(together["input_ids"])
    stage.close()


@pytest.mark.parametrize("text", ["word " * 300, "many a word " * 20_000])
def test_a_chunk_is_read_like_an_item_with_its_text(tmp_path, minilm_directory, text):
    stage = preprocess(tmp_path, spec(weights=str(minilm_directory)))
    parameters = {"instruction": "read: "}
    (split,) = run(stage, [asked("encode", {**parameters, "chunk_tokens": 32, "chunk_overlap": 4}, text=["hi", text])])
    context = split["context"]
    (apart,) = run(stage, [asked("encode", parameters, text=[["hi", text][i][a:b] for i, a, b in context.chunks])])
    assert (context.num_items, context.truncated) == (len(context.chunks), [])
    assert context.chunks[:2] == [[0, 0, 2], [1, 0, context.chunks[1][2]]]
    for name in ("input_ids", "lengths", "cost"):
        np.testing.assert_array_equal(split[name], apart[name])
    assert split["lengths"].max() == 32
    stage.close()


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"chunk_overlap": 3}, "chunk_overlap"),
        ({"chunk_tokens": 3, "instruction": "a prompt"}, "chunk_tokens"),
        ({"chunk_tokens": 0}, "chunk_tokens"),
        ({"chunk_tokens": 16, "chunk_overlap": 8}, "chunk_overlap"),
        ({"chunk_tokens": 16}, "text[1]"),
    ],
)
def test_a_text_that_cannot_be_split_is_refused(tmp_path, minilm_directory, parameters, field):
    stage = preprocess(tmp_path, spec(weights=str(minilm_directory)))
    (refused,) = run(stage, [asked("encode", parameters, text=["a", "word " * 600_000])])
    assert isinstance(refused, InputError)
    assert refused.field == field
    stage.close()


@pytest.fixture
def scorer(tmp_path, minilm_directory):
    """Preprocess stage of a model that encodes, and scores by its outputs."""
    changes = {"family": "bge_m3", "tasks": ("encode", "score"), "score_modes": ("dense",), "max_sequence_length": 32}
    stage = preprocess(tmp_path, spec(weights=str(minilm_directory), **changes))
    yield stage
    stage.close()


@pytest.fixture
def pairs(tmp_path, minilm_directory):
    """Preprocess stage of a cross-encoder."""
    changes = {"family": "cross_encoder", "tasks": ("score",), "dims": {}, "max_sequence_length": 32}
    stage = preprocess(tmp_path, spec(weights=str(minilm_directory), **changes))
    yield stage
    stage.close()


def preprocess(directory, of):
    stage = Preprocess(of, StatusWriter(directory, "m", "preprocess", 0))
    stage.warm_up()
    return stage


@pytest.mark.parametrize("is_cold", [True, False])
@pytest.mark.parametrize("field", ["id", "parameters"])
def test_what_is_not_utf_8_fails_only_its_request(tmp_path, minilm_directory, is_cold, field):
    def refuse(self):
        raise InputError.at(field, "cannot be read; send UTF-8 text")

    Unreadable = type("Unreadable", (FakeRequest,), {field: property(refuse, lambda self, value: None)})
    stage = Preprocess(spec(weights=str(minilm_directory)), StatusWriter(tmp_path, "m", "preprocess", 0))
    if not is_cold:
        stage.warm_up()
    stage._log = RequestLog("m", Telemetry(log_requests=True))
    good = asked("encode", text=["hi"])
    bad, answer = run(stage, [Unreadable(encode_text=texts("hi")), good])
    assert isinstance(bad, InputError)
    assert bad.field == field
    assert answer["input_ids"].tolist() == [101, 7632, 102]
    assert stage.status.record["num_faults"] == 0
    stage.close()


def texts(*items):
    return np.array([[item.encode() for item in items]], object)


def test_only_encode_splits_texts(scorer):
    (refused,) = run(scorer, [asked("score", {"chunk_tokens": 16}, query=["who?"], text=["I"])])
    assert isinstance(refused, InputError)
    assert refused.field == "chunk_tokens"


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"pool_factor": 2.0}, "text[1]"),
        ({"pool_factor": 1, "num_protected_tokens": 3}, None),
        ({"pool_factor": 0.5}, "pool_factor"),
        ({"num_protected_tokens": 3}, "num_protected_tokens"),
        ({"pool_factor": 2.0, "is_query": True}, None),
    ],
)
def test_only_documents_of_some_length_are_pooled(tmp_path, minilm_directory, parameters, field):
    changes = {"family": "bge_m3", "dims": {"multivector": 2}, "max_sequence_length": 256}
    stage = preprocess(tmp_path, spec(weights=str(minilm_directory), **changes))
    with patch.object(token_pooling, "MAX_TOKENS", 9):
        (answer,) = run(stage, [asked("encode", parameters, text=["a", "many a word " * 9])])
    assert (answer.field if isinstance(answer, InputError) else None) == field
    stage.close()


def test_the_query_is_appended_and_counted_in_the_cost(scorer):
    both, alone, query = run(
        scorer,
        [
            asked("score", query=["who?"], text=["I, you", "nobody"]),
            asked("encode", text=["I, you", "nobody"]),
            asked("encode", {"is_query": True}, text=["who?"]),
        ],
    )
    for name in ("input_ids", "lengths"):
        np.testing.assert_array_equal(both[name], np.concatenate([alone[name], query[name]]))
    assert both["cost"][0] == alone["cost"][0] + query["cost"][0]


@pytest.mark.parametrize("repeat", [1, 300])
def test_pairs_are_the_same_in_small_and_bulk_requests(pairs, repeat):
    (answer,) = run(pairs, [asked("score", query=["who?"], text=[*["I, you", ""] * repeat])])
    first, second = [101, 2040, 1029, 102], [1045, 1010, 2017, 102]
    assert answer["input_ids"].tolist() == [*first, *second, *first, 102] * repeat
    assert answer["token_type_ids"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1] * repeat
    assert answer["lengths"].tolist() == [8, 5] * repeat


LONG = "why " * 100_000


def test_truncated_texts_are_reported_by_index(scorer, pairs):
    """Indices count items in a request of any size; the query is not an item."""
    long = "word " * 40
    for texts_sent, expected in ((["a", long, "b"], [1]), ([long, *["a"] * 200, long], [0, 201])):
        (encoded,) = run(scorer, [asked("encode", text=texts_sent)])
        (scored,) = run(scorer, [asked("score", query=[long], text=texts_sent)])
        (paired,) = run(pairs, [asked("score", query=["who?"], text=texts_sent)])
        assert [answer["context"].truncated for answer in (encoded, scored, paired)] == [expected] * 3


ENDLESS = " " * 600_000 + "word"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"query": ["who?"], "text": ["nobody", ENDLESS]}, "text[1]"),
        ({"query": [ENDLESS], "text": ["nobody"]}, "query"),
    ],
)
@pytest.mark.parametrize("stage", ["scorer", "pairs"])
def test_a_text_of_too_many_characters_is_refused_by_name(stage, given, named, request):
    (answer,) = run(request.getfixturevalue(stage), [asked("score", **given)])
    assert isinstance(answer, InputError)
    start = f"{named}: has 600004 characters, of which 500000 make fewer than "
    assert str(answer).startswith(start)
    assert "send at most 500000 characters" in str(answer)


@pytest.mark.parametrize("stage", ["scorer", "pairs"])
def test_an_instruction_over_512_characters_is_refused(stage, request):
    stage = request.getfixturevalue(stage)
    for length, is_refused in ((512, False), (513, True)):
        given = {"query": ["who?"], "text": ["nobody"]}
        (answer,) = run(stage, [asked("score", {"instruction": "w" * length}, **given)])
        assert isinstance(answer, InputError) == is_refused
    assert "parameter instruction: 'www" in str(answer)
    assert "(513 characters) is not allowed; give a string of at most 512 characters" in str(answer)
    assert len(str(answer)) < 300


@pytest.mark.parametrize("stage", ["scorer", "pairs"])
def test_a_huge_query_delays_no_other_request(stage, request):
    """The request is deferred, however few texts it has, and the query is truncated once."""
    stage = request.getfixturevalue(stage)
    huge = asked("score", query=[LONG], text=[*["nobody"] * 20])
    small = asked("score", query=["who?"], text=["I"])
    direct = stage.execute([huge, small])
    assert direct[0] is DEFERRED
    assert direct[1] is not DEFERRED
    answer = huge.answer(direct[0])
    assert len(answer["lengths"]) == 20 + (stage._spec.family == "bge_m3")  # the query itself
    assert answer["lengths"].max() <= 32


LONG_TEXT = "x" * 10_000


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([Prompt()], False),
        ([Prompt(LONG_TEXT)], True),
        ([Prompt(after=LONG_TEXT)], True),
        ([Prompt(), Prompt(LONG_TEXT)], False),
        ([Prompted(str, len(LONG_TEXT))], True),
    ],
)
def test_prompts_count_once_per_text(frames, expected):
    """The second prompt is that of a query, which occurs once."""
    parts = [Part("text", ["nobody"] * 20), Part("query", ["who?"])]
    assert is_bulk([Framed(part, frame, KINDS["text"]) for part, frame in zip(parts, frames, strict=False)]) == expected


def test_a_long_query_is_cut_as_the_tokenizer_would(pairs):
    """Text that is dropped before tokenization would have been truncated anyway."""
    for words in (10, 40, 400):
        query = "climbing plants " * words
        (answer,) = run(pairs, [asked("score", query=[query], text=["of the vine", "x " * 50])])
        encodings = pairs._loaded._tokenizer.encode_batch([(query, "of the vine"), (query, "x " * 50)])
        assert answer["input_ids"].tolist() == [token for encoding in encodings for token in encoding.ids]


def test_an_unexpected_error_leaves_no_request_open(pairs):
    class Broken(FakeRequest):
        @property
        def parameters(self):
            raise RuntimeError("secret detail")

        @parameters.setter
        def parameters(self, value):
            pass

    good = {"score_query": texts("who?"), "score_text": texts("I")}
    for _ in range(3):
        first, broken, second = run(pairs, [FakeRequest(**good), Broken(**good), FakeRequest(**good)])
        assert isinstance(broken, ModelError)
        assert "secret" not in str(broken)
        np.testing.assert_array_equal(first["input_ids"], second["input_ids"])
    assert pairs.status.record["num_open"] == 0
