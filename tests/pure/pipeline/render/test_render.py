from dataclasses import replace
from pathlib import Path

import pytest

from sie_triton.contract.spec import ModelSpec, MuveraConfig, Runtime
from sie_triton.contract.tensors import CHUNKS, DENSE, DENSE_QUANTIZED, TEXT, TIMING_MS, TOKEN_COUNT, TRUNCATED
from sie_triton.models.catalog import starter_set
from sie_triton.pipeline.render.build import check_repository, write_repository
from sie_triton.pipeline.render.pbtxt import ensembles, from_text
from sie_triton.pipeline.render.repository import HOOK_NAME, NO_HOOK
from sie_triton.settings import read_settings
from tests.support.stages import spec

ROOT = Path(__file__).parents[4]
SPEC = starter_set()[0].resolve(Runtime())
NAME = "sentence-transformers__all-MiniLM-L6-v2"


@pytest.fixture(autouse=True)
def usual_settings(monkeypatch):
    """Remove settings that other tests' servers left."""
    monkeypatch.delenv("SIE_ENGINE", raising=False)


@pytest.fixture
def repository(tmp_path):
    write_repository(tmp_path, read_settings(), [])
    return tmp_path


def config(repository: Path, model: str):
    return from_text((repository / model / "config.pbtxt").read_text())


def test_the_committed_starter_set_is_up_to_date():
    assert check_repository(ROOT / "model_repository", read_settings(), []) == []


def test_the_ensemble_takes_and_gives_plain_vectors(repository):
    ensemble = config(repository, NAME)
    assert ensemble.max_batch_size == 0
    assert [(t.name, list(t.dims), list(t.reshape.shape)) for t in ensemble.input] == [(TEXT.name, [-1], [1, -1])]
    outputs = {t.name: (list(t.dims), list(t.reshape.shape)) for t in ensemble.output}
    assert outputs == {
        DENSE.name: ([-1, -1], [1, -1, -1]),
        DENSE_QUANTIZED.name: ([-1, -1], [1, -1, -1]),
        CHUNKS.name: ([-1, 3], [1, -1, 3]),
        TOKEN_COUNT.name: ([-1], [1, -1]),
        TRUNCATED.name: ([-1], [1, -1]),
        TIMING_MS.name: ([-1], [1, -1]),
    }
    assert ensemble.parameters["dense_dim"].string_value == "384"


def test_the_ensemble_tells_the_size_of_each_output():
    muvera = MuveraConfig(num_repetitions=2, num_simhash_projections=3, projection_dim=4, final_projection_dim=None)
    dims = {"sparse": 500, "multivector": 16, "muvera": muvera.dim(16)}
    (ensemble,) = ensembles(spec(family="bge_m3", dims=dims, muvera=muvera), "m", "m")
    sizes = {name: each.string_value for name, each in ensemble.parameters.items() if name.endswith("_dim")}
    assert sizes == {"sparse_dim": "500", "multivector_dim": "16", "muvera_dim": str(2 * 2**3 * 4)}


@pytest.mark.parametrize("stage", ["preprocess", "inference", "postprocess"])
def test_composing_models_batch_ragged_requests_without_a_queue_policy(repository, stage):
    model = config(repository, f"{NAME}-{stage}")
    assert model.max_batch_size == 64
    assert all(t.allow_ragged_batch for t in model.input)
    assert model.HasField("dynamic_batching")
    assert not model.dynamic_batching.HasField("default_queue_policy")
    assert model.dynamic_batching.priority_levels == 0
    assert model.dynamic_batching.max_queue_delay_microseconds == 0


def test_the_batch_wait_applies_only_to_inference(tmp_path):
    write_repository(tmp_path, read_settings(max_batch_wait_ms=2.5, max_batch_requests=7), [])
    steps = {stage: config(tmp_path, f"{NAME}-{stage}") for stage in ("preprocess", "inference", "postprocess")}
    delays = {stage: step.dynamic_batching.max_queue_delay_microseconds for stage, step in steps.items()}
    assert delays == {"preprocess": 0, "inference": 2500, "postprocess": 0}
    assert {step.max_batch_size for step in steps.values()} == {7}


def test_the_spec_survives_the_configuration(repository):
    text = config(repository, f"{NAME}-inference").parameters["sie_spec"].string_value
    assert ModelSpec.from_json(text) == SPEC


def test_the_hook_sits_in_the_inference_model_and_is_not_drift(repository):
    assert [p.parent.name for p in repository.rglob(HOOK_NAME)] == [f"{NAME}-inference"]
    assert check_repository(repository, read_settings(), []) == []


def test_a_missing_compiler_is_one_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert write_repository(tmp_path, read_settings(), []) == [NO_HOOK]
    assert check_repository(tmp_path, read_settings(), []) == []


def test_drift_lists_every_differing_file(repository):
    (repository / NAME / "config.pbtxt").write_text("name: 'other'")
    (repository / f"{NAME}-inference" / "1" / "model.py").unlink()
    (repository / "stray").write_text("")
    assert check_repository(repository, read_settings(), []) == [
        f"{NAME}-inference/1/model.py: missing",
        "stray: belongs to no model",
        f"{NAME}/config.pbtxt: differs",
    ]


def test_rendering_again_replaces_whole_models(repository):
    (repository / NAME / "leftover").write_text("")
    write_repository(repository, read_settings(), [])
    assert check_repository(repository, read_settings(), []) == []
    assert not [p for p in repository.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("device", ["cpu", "cuda:1", "cuda", "auto"])
def test_triton_starts_one_instance_whatever_the_device(tmp_path, device):
    """KIND_AUTO, or KIND_GPU without `gpus`, would make Triton start an instance for each GPU."""
    write_repository(tmp_path, read_settings(device=device), [], hook=False)
    (group,) = config(tmp_path, f"{NAME}-inference").instance_group
    assert (group.kind, list(group.gpus), group.count) == (group.KIND_CPU, [], 1)


def test_the_admission_cost_is_that_of_one_forward_pass():
    assert SPEC.admission_cost == SPEC.max_batch_cost
    assert replace(SPEC, runtime=Runtime(max_sub_batch_cost=100)).admission_cost == 100
