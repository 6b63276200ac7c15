"""Scores through the interface of inference and postprocess: queries as items, beside requests to encode."""

import numpy as np
import pytest

from sie_triton.models.families.shared.token_batch import prompt_tokens
from sie_triton.models.families.shared.token_batch import tokens as tokens_of
from sie_triton.pipeline.stages.message import Seal
from sie_triton.pipeline.stages.postprocess import Postprocess
from sie_triton.records.traffic import TrafficWriter
from tests.support.stages import computed, run, spec, tokens

MODEL = {"family": "bge_m3", "tasks": ("encode", "score"), "score_modes": ("dense",)}
PAIRS = {"family": "cross_encoder", "tasks": ("score",), "dims": {}}

by_outputs = pytest.mark.parametrize("inference", [MODEL], indirect=True)


def asking(query, *items, **changes):
    return tokens(*items, query=query, **changes)


def cosine(query, item):
    """Return the cosine of EchoWorker's vectors, each an item's first token and its number of tokens."""
    a, b = (np.array([each[0], len(each)], float) for each in (query, item))
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@by_outputs
def test_scores_and_vectors_in_one_batch(inference):
    inference.warm_up()
    score, encode = asking([7] * 3, [1], [5, 5]), tokens([9, 9, 9])
    first, second = run(inference, [score, encode])
    np.testing.assert_allclose(first["scores"], [cosine([7] * 3, [1]), cosine([7] * 3, [5, 5])], rtol=1e-6)
    assert first.keys().isdisjoint({"dense"})
    assert second["dense"].tolist() == [[9, 3]]
    assert sum(inference.worker.batches) == 9


@by_outputs
@pytest.mark.parametrize("memory", [10, 22, 30])
def test_scores_survive_out_of_memory_at_any_query_position(inference, memory):
    inference.warm_up()
    inference.worker.memory = memory
    items = [[i + 1] * (i + 1) for i in range(8)]
    for query in ([9] * 2, [9] * 5, [9] * 10):
        (answer,) = run(inference, [asking(query, *items)])
        np.testing.assert_allclose(answer["scores"], [cosine(query, item) for item in items], rtol=1e-6)


@by_outputs
def test_the_query_has_prompt_tokens_of_its_own(inference):
    seen = []
    forward = inference.worker.forward
    inference.worker.forward = lambda batch, threads: seen.append(batch) or forward(batch, threads)
    inference.warm_up()
    run(inference, [asking([9] * 4, [1] * 3, [2] * 2, prompt_tokens=np.array([1, 1, 2], np.int32))])
    items = {
        int(tokens_of(batch)[1][i]): (int(prompt_tokens(batch)[i]), bool(batch.is_query[i]))
        for batch in seen
        for i in range(batch.num_items)
    }
    assert items == {3: (1, False), 2: (1, False), 4: (2, True)}


def test_postprocess_hands_scores_on(tmp_path):
    stage = Postprocess(spec(**MODEL), Seal(tmp_path), TrafficWriter.private())
    arrays = {"lengths": np.array([3, 4, 5], np.int32), "scores": np.array([0.5, 2.0], np.float32)}
    (good,) = run(stage, [computed(arrays, verb="score", num_items=2)])
    assert good["scores"].tolist() == [0.5, 2.0]
    assert good["token_count"].tolist() == [3, 4]
    assert set(good) == {"scores", "token_count", "truncated", "timing_ms"}
