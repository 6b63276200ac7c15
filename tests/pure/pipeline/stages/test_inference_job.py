"""Inference's inputs and outputs, for a family with features and parameters of its own."""

from pathlib import Path

import numpy as np
import pytest

from sie_triton.contract import VERBS
from sie_triton.contract.spec import Runtime
from sie_triton.errors import InputError, ModelError
from sie_triton.models.families import model_of
from sie_triton.pipeline.scheduling.job import NEVER
from sie_triton.pipeline.stages.context import Context
from sie_triton.pipeline.stages.inference_job import BusyLog, InferenceCodec
from sie_triton.pipeline.stages.message import Messages, Seal
from sie_triton.pipeline.stages.open_requests import OpenRequest
from sie_triton.pipeline.stages.postprocess import Postprocess
from sie_triton.pipeline.worker.messages import Loaded
from sie_triton.records.traffic import TrafficWriter
from tests.support.family_double import NAME
from tests.support.stages import FakeRequest, open_requests, run, spec

ENCODE, SCORE = VERBS["encode"], VERBS["score"]
OWN = spec(
    family=NAME,
    dims={"dense": 2, "tags": 4},
    tasks=("encode", "score"),
    score_modes=("dense",),
    batch_cost="attention",
    max_sequence_length=1000,
    runtime=Runtime(),
)


@pytest.fixture
def codec(tmp_path):
    return InferenceCodec(OWN, Seal(tmp_path))


def sent(context, lengths=(2, 600), **changes):
    """Make a request as preprocess sends it."""
    total = sum(lengths)
    arrays = {
        "letters": np.arange(total, dtype=np.int32),
        "pairs": np.zeros((total, 2), np.float32),
        "weight": np.zeros((len(lengths), 3), np.float32),
        "num_letters": np.array(lengths, np.int32),
        **changes,
    }
    outputs = Messages.from_preprocess(model_of(OWN), Seal(Path())).write(context, arrays)
    return FakeRequest(**{name: each[None] for name, each in outputs.items()})


def entered(request):
    return OpenRequest(request, open_requests())


def loaded(limits=None):
    """Return a worker's report of a model that reads items of at most 10,000 rows."""
    return Loaded(limits or {}, 10_000, 1, 0)


def test_work_takes_its_options_from_the_context(codec):
    options = {"threshold": 0.5, "labels": "near", "normalize": False, "output_types": "tags"}
    work = codec.read(entered(sent(Context(ENCODE, options, num_items=2, deadline_ns=77, ticket=5))), loaded())
    assert work.deadline_ns == 77
    assert work.options == {"threshold": 0.5, "labels": "near"}
    assert work.wanted == {"tags"}
    assert work.costs == [1, -(-(600**2) // 512)]
    assert work.is_query == [False, False]
    assert work.context.ticket == 5
    assert work.features["letters"].lengths is work.features["pairs"].lengths


def test_the_query_of_a_score_is_its_last_element(codec):
    work = codec.read(entered(sent(Context(SCORE, {}, num_items=1))), loaded())
    assert work.is_query == [False, True]
    assert (work.wanted, work.options, work.deadline_ns) == ({"dense"}, {}, NEVER)


def test_the_deadline_is_known_before_the_request_is_read(codec):
    request = sent(Context(ENCODE, {}, num_items=2, deadline_ns=77), letters=np.zeros(0, np.int32))
    assert codec.origin(request).deadline_ns == 77
    assert codec.origin(FakeRequest()).deadline_ns == NEVER


def test_features_of_another_packages_processor_are_checked(codec):
    """test_checks.py has the checks."""
    with pytest.raises(InputError, match="letters: must be from 0 to 600"):
        codec.read(entered(sent(Context(ENCODE, {}, num_items=2))), loaded({"letters": 600}))


def computed(codec, context):
    """Return the response to a request of two items, as if a pass had run from 10 to 15."""
    work = codec.read(entered(sent(context)), loaded())
    for item in range(2):
        rows = np.full((item + 1, 4), item, np.float32)
        work.rows[item] = {"dense": np.full(2, item, np.float32), "tags": rows, "tags_lengths": np.int32(item + 1)}
    work.ran.append((10, 15))
    codec.collect(work)
    loads = BusyLog()
    loads.add(5, 7)
    return codec.write(work, BusyLog(), loads)


@pytest.mark.parametrize(("verb", "num_items"), [(ENCODE, 2), (SCORE, 1)])
def test_postprocess_accepts_only_outputs_of_inference(codec, verb, num_items):
    """Both verbs share the step; only tokens of items are counted."""
    stage = Postprocess(OWN, Seal(Path()), TrafficWriter.private())
    of_inference = computed(codec, Context(verb, {}, num_items=num_items, preprocessed_ns=4))
    of_preprocess = sent(Context(verb, {}, num_items=num_items))
    good, bad = run(stage, [FakeRequest(message=of_inference["message"][None]), of_preprocess])
    assert good["token_count"].tolist() == [2, 600][:num_items]
    with pytest.raises(InputError, match="message: this step accepts only the output of the previous step"):
        raise bad


def test_an_output_of_a_familys_own_is_handed_on_with_its_lengths(codec):
    _, handed = received(computed(codec, Context(ENCODE, {"output_types": "tags"}, num_items=2)))
    assert handed["tags"].tolist() == [[0] * 4, [1] * 4, [1] * 4]
    assert handed["tags_lengths"].tolist() == [1, 2]
    assert len(handed["dense"]) == 0
    assert codec.ragged == {"tags": "tags_lengths"}


def test_the_context_from_inference_has_its_times(codec):
    found, _ = received(computed(codec, Context(ENCODE, {}, num_items=2, preprocessed_ns=4)))
    assert (found.inference_ns, found.queue_ns, found.batch_wait_ns) == (5, 0, 6)


def test_a_job_whose_rows_cannot_be_collected_has_the_error(codec):
    work = codec.read(entered(sent(Context(ENCODE, {}, num_items=2))), loaded())
    codec.collect(work)  # no row has a dense vector
    assert isinstance(work.error, ModelError)


def received(outputs):
    """Return the context and the arrays that inference has sent."""
    return Messages.from_inference(model_of(OWN), Seal(Path())).read(
        FakeRequest(message=outputs["message"][None]), copy=True
    )
