"""The wiring of a model's steps, for any family and verbs: each tensor exists, and has one meaning."""

import pytest

from sie_triton.contract import VERBS
from sie_triton.contract.tensors import MESSAGE
from sie_triton.models.families import FAMILIES, family, model_of
from sie_triton.pipeline.render.pbtxt import composing_models, ensembles
from tests.support.family_double import NAME
from tests.support.stages import spec

MODELS = {
    "encode": {},
    "score": {"family": "cross_encoder", "tasks": ("score",), "dims": {}},
    "both": {"family": "bge_m3", "tasks": ("encode", "score"), "score_modes": ("dense",)},
    "own": {
        "family": NAME,
        "dims": {"dense": 2, "tags": 4},
        "tasks": ("encode", "score"),
        "score_modes": ("dense",),
        "scaled": ("dense",),
    },
}


@pytest.fixture(params=MODELS)
def made(request):
    """The spec, its ensembles and its steps by name."""
    of = spec(**MODELS[request.param])
    steps = composing_models(of, "m", max_batch_requests=64, max_queue_delay_us=0, residency="cold")
    return of, list(ensembles(of, "m", "m")), {step.name: step for step in steps}


def names(tensors):
    return [tensor.name for tensor in tensors]


def test_every_name_of_a_configuration_is_there_once(made):
    _, found, steps = made
    for config in (*found, *steps.values()):
        for tensors in (config.input, config.output):
            assert len(set(names(tensors))) == len(tensors)


def test_ensemble_steps_are_wired_with_all_required_tensors(made):
    _, found, steps = made
    for ensemble in found:
        written = set(names(ensemble.input))
        for step in ensemble.ensemble_scheduling.step:
            inputs = {tensor.name: tensor for tensor in steps[step.model_name].input}
            assert step.input_map.keys() <= inputs.keys()
            assert {name for name, tensor in inputs.items() if not tensor.optional} <= step.input_map.keys()
            assert step.output_map.keys() <= set(names(steps[step.model_name].output))
            assert set(step.input_map.values()) <= written
            assert written.isdisjoint(step.output_map.values())
            written |= set(step.output_map.values())
        assert set(names(ensemble.output)) <= written


def test_each_verb_has_its_ensemble_and_the_first_the_bare_name(made):
    of, found, _ = made
    expected = [("m" if verb == of.tasks[0] else f"m-{verb}", verb) for verb in of.tasks]
    assert [(each.name, each.parameters["verb"].string_value) for each in found] == expected
    for ensemble, task in zip(found, of.tasks, strict=True):
        verb, model = VERBS[task], model_of(of)
        assert names(ensemble.input) == names(verb.inputs(("text",)))
        assert names(ensemble.output) == [*names(verb.outputs(model)), "token_count", "truncated", "timing_ms"]
        first, second, third = (step.input_map for step in ensemble.ensemble_scheduling.step)
        assert dict(first) == {f"{task}_{name}": name for name in names(ensemble.input)}
        # What inference has written, and not what it was sent.
        written = ensemble.ensemble_scheduling.step[1].output_map
        assert third[MESSAGE.name] == written[MESSAGE.name] != second[MESSAGE.name]


def test_only_tensors_of_a_single_verb_are_optional(made):
    of, _, steps = made
    several = len(of.tasks) > 1
    for tensor in steps["m-preprocess"].input:
        assert tensor.optional == several
    assert not any(tensor.optional for tensor in steps["m-inference"].input)
    assert not any(tensor.optional for tensor in steps["m-postprocess"].input)


def test_large_features_go_to_inference_beside_the_message():
    of = spec(family="clip", inputs=("text", "image"))
    _, inference, postprocess = composing_models(of, "m", max_batch_requests=1, max_queue_delay_us=0, residency="cold")
    assert names(inference.input) == ["message", "pixels"]
    assert names(postprocess.input) == ["message"]


def test_the_first_feature_of_a_family_gives_the_length_of_an_item():
    for name in FAMILIES:
        features = family(name).features
        first = features[0]
        assert first.lengths or (first.dtype, first.minimum) == ("INT32", 1), "it says what an item's length is"


@pytest.mark.parametrize(
    ("changes", "inputs"),
    [
        ({"family": "gliner", "tasks": ("extract",), "dims": {}}, ["text", "labels", "entities"]),
        ({"family": "clip", "inputs": ("text", "image")}, ["text", "image"]),
    ],
)
def test_if_one_input_is_optional_all_are(changes, inputs):
    """Triton counts the inputs of a request, and would take one for another."""
    of = spec(**changes)
    (ensemble,) = ensembles(of, "m", "m")
    assert [(tensor.name, tensor.optional) for tensor in ensemble.input] == [(name, True) for name in inputs]
    preprocess, *_ = composing_models(of, "m", max_batch_requests=1, max_queue_delay_us=0, residency="cold")
    assert all(tensor.optional for tensor in preprocess.input)


@pytest.mark.parametrize(
    ("inputs", "passed_on"), [(("text",), {"text": "text", "labels": "labels"}), (("image",), {"labels": "labels"})]
)
def test_texts_and_labels_bypass_inference(inputs, passed_on):
    """Inference returns positions; postprocess replaces them by words and names."""
    (ensemble,) = ensembles(spec(family="gliner", tasks=("extract",), dims={}, inputs=inputs), "m", "m")
    *_, postprocess = ensemble.ensemble_scheduling.step
    found = {name.removeprefix("extract_"): of for name, of in postprocess.input_map.items() if "extract_" in name}
    assert found == passed_on
