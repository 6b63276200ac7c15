"""Late chunking: the means of transformers' states of one pass over the whole text, chunk by chunk."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from sie_triton.contract import Part
from sie_triton.contract.spec import REMOTE, Runtime
from sie_triton.errors import InputError
from sie_triton.models.catalog import recognise
from sie_triton.models.families import load_processor
from tests.support.models import build
from tests.support.parity import TO_ITSELF, assert_parity, cosines, varied_texts
from tests.support.steps import Steps

LONG = " ".join(varied_texts(80)[9:])[:900]
TEXTS = [LONG, "short", " two lines \n\n of white space ", LONG[300:700]]
LATE = {"chunk_tokens": 24, "late_chunking": True}


def by_hand(directory, text, places, prompt="", pools_prompt=True):
    """Unit vectors [chunks, d]: the first chunk has the tokens before it too, the last one those after it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModel.from_pretrained(directory).eval()
    read = tokenizer(prompt + text, return_tensors="pt", return_offsets_mapping=True)
    ends = [int(end) - len(prompt) for _, end in read.pop("offset_mapping")[0]]
    with torch.inference_mode():
        states = model(**read).last_hidden_state[0]
    skipped = 0 if pools_prompt else len(tokenizer(prompt)["input_ids"]) - 1
    chunk_of = [next(i for i, (_, stop) in enumerate(places) if end <= stop) for end in ends]
    chunk_of = np.maximum.accumulate(chunk_of)
    chunk_of[-1], chunk_of[:skipped] = len(places) - 1, -1
    means = torch.stack([states[torch.from_numpy(chunk_of == i)].mean(0) for i in range(len(places))])
    return torch.nn.functional.normalize(means, dim=-1).numpy()


def places_of(answer, item):
    return [(start, end) for of, start, end in answer["chunks"].tolist() if of == item]


def rows_of(answer, item):
    return answer["dense"][answer["chunks"][:, 0] == item]


@pytest.mark.parametrize("architecture", ["bert", "modernbert", "xlm-roberta", "qwen3"])
def test_vectors_are_means_of_one_pass(tmp_path, minilm_directory, architecture):
    build(tmp_path / "encoder", minilm_directory, architecture, pooling="mean").save(str(tmp_path / "model"))
    steps = Steps(tmp_path, tmp_path / "model")
    (late,) = steps.encode([(TEXTS, LATE)])
    largest = 0.0
    for item, text in enumerate(TEXTS):
        expected = by_hand(tmp_path / "model", text, places_of(late, item))
        largest = max(largest, float(abs(rows_of(late, item) - expected).max()))
        assert_parity(rows_of(late, item), expected)
    print(f"{architecture}: largest difference {largest:.1e}")
    assert len(late["dense"]) == len(late["token_count"]) == len(late["chunks"]) > 15


def test_late_chunks_share_a_batch_with_others(tmp_path, minilm_directory):
    """Requests in one pass, item by item in turn, get what each gets alone."""
    build(tmp_path / "encoder", minilm_directory, "bert").save(str(tmp_path / "model"))
    steps = Steps(tmp_path, tmp_path / "model")
    requests = [
        (TEXTS, LATE),
        (TEXTS, {"chunk_tokens": 24}),
        (TEXTS, {}),
        (TEXTS[::-1], {**LATE, "chunk_overlap": 8, "normalize": False}),
        ([LONG[:90]], {"chunk_tokens": 500, "late_chunking": True}),
        (TEXTS[1:2], {"chunk_tokens": 24, "late_chunking": False}),
    ]
    together = steps.encode(requests)
    for request, found in zip(requests, together, strict=True):
        (alone,) = steps.encode([request])
        assert found.keys() == alone.keys()
        for name in ("chunks", "token_count"):
            np.testing.assert_array_equal(found[name], alone[name])
        assert_parity(found["dense"], alone["dense"], TO_ITSELF)
    late, chunked, _, overlapping, one, _ = together
    np.testing.assert_array_equal(late["chunks"], chunked["chunks"])
    assert cosines(rows_of(late, 0), rows_of(chunked, 0)).min() < 0.999  # chunks that are read alone see less
    assert overlapping["chunks"][1].tolist()[1] < overlapping["chunks"][0].tolist()[2]
    (plain,) = steps.encode([([LONG[:90]], {})])
    assert_parity(one["dense"], plain["dense"], TO_ITSELF)
    assert one["token_count"].tolist() == plain["token_count"].tolist()


def test_a_profile_may_ask_for_late_chunks(tmp_path, minilm_directory):
    """Requests that split no text are as without it."""
    build(tmp_path / "encoder", minilm_directory, "bert").save(str(tmp_path / "model"))
    steps, usual = Steps(tmp_path, tmp_path / "model"), Steps(tmp_path, tmp_path / "model", late_chunking=True)
    (late, plain) = steps.encode([(TEXTS, LATE), (TEXTS, {})])
    found = usual.encode([(TEXTS, {"chunk_tokens": 24}), (TEXTS, {})])
    for ours, theirs in zip(found, (late, plain), strict=True):
        assert_parity(ours["dense"], theirs["dense"], TO_ITSELF)


@pytest.mark.parametrize("pools_prompt", [True, False])
def test_the_prompt_belongs_to_the_first_chunk(tmp_path, minilm_directory, pools_prompt):
    prompts = {"query": "search for: "}
    library = build(tmp_path / "encoder", minilm_directory, "bert", include_prompt=pools_prompt, prompts=prompts)
    library.save(str(tmp_path / "model"))
    (late,) = Steps(tmp_path, tmp_path / "model").encode([(TEXTS[:1], {**LATE, "is_query": True})])
    expected = by_hand(tmp_path / "model", LONG, places_of(late, 0), prompts["query"], pools_prompt)
    assert_parity(late["dense"], expected)


def test_a_server_that_pools_by_itself_is_not_asked(tmp_path, minilm_directory):
    build(tmp_path / "encoder", minilm_directory, "bert").save(str(tmp_path / "model"))
    spec = recognise(tmp_path / "model", "m", {"weights_path": str(tmp_path / "model")}).resolve(Runtime())
    part = Part("text", TEXTS, options=LATE)
    assert load_processor(spec, tmp_path / "model").tokenizer_of(part)
    with pytest.raises(InputError) as refused:
        load_processor(replace(spec, engine=REMOTE), tmp_path / "model").tokenizer_of(part)
    assert refused.value.field == "late_chunking"


@pytest.mark.parametrize(
    ("pooling", "texts", "parameters", "field"),
    [
        (("cls",), TEXTS, LATE, "late_chunking"),
        (("mean", "max"), TEXTS, LATE, "late_chunking"),
        (("mean",), TEXTS, {"late_chunking": True}, "late_chunking"),
        (("mean",), ["short", "word " * 600], LATE, "text[1]"),
    ],
)
def test_what_cannot_be_pooled_late_is_refused(tmp_path, minilm_directory, pooling, texts, parameters, field):
    build(tmp_path / "encoder", minilm_directory, "bert", pooling=pooling).save(str(tmp_path / "model"))
    (refused,) = Steps(tmp_path, tmp_path / "model").encode([(texts, parameters)])
    assert isinstance(refused, InputError)
    assert refused.field == field
