"""The verbs: inputs that the model reads, outputs that it must give, and the results made of them."""

import numpy as np
import pytest

from sie_triton.contract import VERBS, Computed, Part
from sie_triton.contract.spec import MuveraConfig, Profile
from sie_triton.models.families import model_of
from tests.support.family_double import NAME
from tests.support.stages import spec

ENCODE, SCORE = VERBS["encode"], VERBS["score"]
ONES = np.ones(3, np.int32)  # each element is read in one piece
MUVERA = MuveraConfig(num_repetitions=2, num_simhash_projections=2, final_projection_dim=None)


def model(**changes):
    return model_of(spec(**changes))


BGE_M3 = model(
    family="bge_m3",
    dims={"dense": 2, "sparse": 9, "multivector": 4, "muvera": MUVERA.dim(4)},
    muvera=MUVERA,
    tasks=("encode", "score"),
    score_modes=("dense", "sparse", "colbert", "hybrid"),
)
PAIRS = model(family="cross_encoder", dims={}, tasks=("score",))
PLAIN, FINDING = Profile(), Profile("finding", instruction="find")


# --- what the model reads


@pytest.mark.parametrize(
    ("given", "profile", "is_query", "instruction"),
    [
        ({}, PLAIN, None, None),
        ({"is_query": False}, PLAIN, False, None),
        ({"is_query": True}, PLAIN, True, None),
        ({}, FINDING, None, "find"),
        ({"instruction": "see"}, FINDING, None, "see"),
        ({"instruction": ""}, FINDING, None, ""),
        ({"instruction": "see"}, PLAIN, None, "see"),
    ],
)
def test_encode_reads_its_texts_as_one_part(given, profile, is_query, instruction):
    parts = ENCODE.read({"text": ["a", "b"]}, given, profile, BGE_M3)
    assert parts == [Part("text", ["a", "b"], profile, is_query, instruction, options=given)]
    assert ENCODE.num_items(parts) == 2


SCORED = {"query": ["who?"], "text": ["a", "b", "c"]}


@pytest.mark.parametrize(
    ("given", "profile", "of_texts", "of_query"),
    [
        ({}, PLAIN, None, None),
        ({}, FINDING, "find", "find"),
        ({"instruction": "see"}, PLAIN, None, "see"),
        ({"instruction": "see"}, FINDING, "find", "see"),
        ({"instruction": ""}, FINDING, "find", ""),
    ],
)
def test_scoring_by_outputs_reads_texts_and_then_the_query(given, profile, of_texts, of_query):
    """A request's instruction is for the query."""
    parts = SCORE.read(SCORED, given, profile, BGE_M3)
    assert parts == [
        Part("text", ["a", "b", "c"], profile, False, of_texts, options=given),
        Part("query", ["who?"], profile, True, of_query, options=given),
    ]
    assert SCORE.num_items(parts) == 3
    pair = SCORE.read(SCORED, given, profile, PAIRS)
    assert pair == [Part("text", ["a", "b", "c"], profile, None, of_query, "who?", options=given)]
    assert SCORE.num_items(pair) == 3


def test_query_flags_follow_the_verb_and_the_is_query_parameter():
    assert ENCODE.is_query({}, 3, 3) == [False] * 3
    assert ENCODE.is_query({"is_query": True}, 3, 2) == [True] * 3
    assert ENCODE.is_query({"is_query": False}, 3, 3) == [False] * 3
    assert SCORE.is_query({}, 3, 2) == [False, False, True]
    assert SCORE.is_query({"is_query": True}, 2, 2) == [False, False]


# --- what the model gives


def names(tensors):
    return [tensor.name for tensor in tensors]


SPARSE = ["sparse_indices", "sparse_values", "sparse_lengths"]
MULTIVECTOR = ["multivector", "multivector_lengths"]


@pytest.mark.parametrize(
    ("output_types", "needed", "sent"),
    [
        ("", {"dense", "sparse", "multivector"}, ["dense", *SPARSE, *MULTIVECTOR]),
        ("sparse", {"sparse"}, SPARSE),
        ("multivector,dense", {"dense", "multivector"}, ["dense", *MULTIVECTOR]),
        ("muvera", {"multivector"}, MULTIVECTOR),
        ("muvera,multivector", {"multivector"}, MULTIVECTOR),
    ],
)
def test_requested_outputs_determine_the_needed_model_outputs(output_types, needed, sent):
    options = {"output_types": output_types} if output_types else {}
    assert ENCODE.needed(BGE_M3, options) == needed
    assert names(ENCODE.sent(BGE_M3, options)) == sent
    assert names(ENCODE.computed(BGE_M3)) == ["dense", *SPARSE, *MULTIVECTOR]


def test_encode_forwards_every_tensor_and_fills_only_needed_ones():
    rows = [
        {"multivector": np.full((length, 4), length, np.float32), "multivector_lengths": np.int32(length)}
        for length in (2, 0, 1)
    ]
    found = ENCODE.collect(BGE_M3, {"output_types": "muvera"}, rows, ONES)
    assert set(found) == set(names(ENCODE.forwarded(BGE_M3)))
    assert found["multivector"][:, 0].tolist() == [2, 2, 1]
    assert found["multivector_lengths"].tolist() == [2, 0, 1]
    assert {name: len(found[name]) for name in ("dense", *SPARSE)} == dict.fromkeys(("dense", *SPARSE), 0)


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({}, {"dense"}),
        ({"score_mode": "colbert"}, {"multivector"}),
        ({"score_mode": "hybrid"}, {"dense", "sparse", "multivector"}),
    ],
)
def test_the_score_mode_determines_the_needed_model_outputs(options, needed):
    assert SCORE.needed(BGE_M3, options) == needed
    assert SCORE.needed(PAIRS, {}) == {"scores"}
    assert names(SCORE.sent(BGE_M3, options)) == names(SCORE.forwarded(BGE_M3)) == ["scores"]
    assert names(SCORE.computed(PAIRS)) == ["scores"]
    assert names(SCORE.computed(BGE_M3)) == ["dense", *SPARSE, *MULTIVECTOR]


def test_the_last_element_is_the_query_that_the_others_are_scored_against():
    rows = [{"dense": np.array(row, np.float32)} for row in ([1, 0], [0, 2], [0, 3])]
    np.testing.assert_allclose(SCORE.collect(BGE_M3, {}, rows, ONES)["scores"], [0, 1], atol=1e-6)
    pairs = [{"scores": np.float32(value)} for value in (3, 1, 2)]
    assert SCORE.collect(PAIRS, {}, pairs, ONES)["scores"].tolist() == [3, 1, 2]


# --- what a client gets


@pytest.mark.parametrize("scaled", [(), ("dense",), ("multivector", "muvera")])
def test_encode_returns_exactly_the_declared_outputs(scaled):
    """Scales are declared only for outputs for which the model file requests them."""
    of = model(family="bge_m3", dims={"dense": 2, "sparse": 9, "multivector": 4}, scaled=scaled)
    lengths = np.ones(1, np.int32)
    computed = {
        "dense": np.ones((1, 2), np.float32),
        **dict(zip(SPARSE, (np.ones(1, np.int32), np.ones(1, np.float32), lengths), strict=True)),
        **dict(zip(MULTIVECTOR, (np.ones((1, 4), np.float32), lengths), strict=True)),
    }
    declared = names(ENCODE.outputs(of))
    assert [name for name in declared if name.endswith("_scales")] == [
        f"{name}_scales" for name in ("dense", "multivector") if name in scaled
    ]
    for dtype in ("float32", "int8", "ubinary"):
        found = ENCODE.answering(of).outputs(Computed({"output_dtype": dtype}, dict(computed)))
        assert set(found) == set(declared)
        filled = {name for name in declared if len(found[name])}
        assert {name for name in filled if name.endswith("_scales")} == (
            {name for name in declared if name.endswith("_scales")} if dtype == "int8" else set()
        )


# --- what a client may set


def test_every_verb_accepts_the_familys_own_parameters():
    own = model(family=NAME, dims={"dense": 8, "tags": 4}, tasks=("encode", "score"), score_modes=("dense",))
    for verb in (ENCODE, SCORE):
        assert {"threshold", "labels", "profile", "instruction"} <= set(verb.all_parameters(own))
    assert ENCODE.all_parameters(own)["output_types"].choices == ("dense", "tags")
    assert "threshold" not in ENCODE.all_parameters(BGE_M3)


@pytest.mark.parametrize("verb", [ENCODE, SCORE])
def test_parameters_of_prompts_are_for_preprocess_alone(verb):
    read = {name for name, parameter in verb.all_parameters(BGE_M3).items() if parameter.for_prompt}
    of_encode = {"prompt_name", "chunk_tokens", "chunk_overlap"}
    assert read == {"instruction", "profile", "truncation_side", *(of_encode if verb is ENCODE else ())}


def test_input_names_start_with_their_verb():
    """The name tells preprocess which ensemble a request came through."""
    assert [ENCODE.input_name(tensor) for tensor in ENCODE.inputs(("text", "image"))] == ["encode_text", "encode_image"]
    assert [SCORE.input_name(tensor) for tensor in SCORE.inputs(("text",))] == ["score_query", "score_text"]
