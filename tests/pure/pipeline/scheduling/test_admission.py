"""The compiled hook, driven directly as Triton drives it."""

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from sie_triton.pipeline.render import repository
from sie_triton.pipeline.render.pbtxt import composing_models
from sie_triton.pipeline.stages.message import FRONT, SEAL_BYTES
from tests.pure.pipeline.render.test_render import SPEC

FAKE_TRITON = Path(__file__).with_name("fake_triton.c")


@pytest.fixture(scope="module")
def hook(tmp_path_factory) -> tuple[ctypes.CDLL, ctypes.CDLL]:
    directory = tmp_path_factory.mktemp("hook")
    fake = directory / "fake.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(fake), str(FAKE_TRITON)], check=True)
    triton = ctypes.CDLL(str(fake), mode=ctypes.RTLD_GLOBAL)
    library = repository.build_hook(directory)
    assert library is not None
    return triton, ctypes.CDLL(str(library))


def config(budget: object) -> bytes:
    return f'{{"name":"m","parameters":{{"max_batch_cost":{{"string_value":"{budget}"}}}}}}'.encode()


def admit(hook, budget: int, costs: list[int]) -> list[bool]:
    triton, library = hook
    text = config(budget)
    triton.set_config(text)
    batcher, batch, included = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_bool()
    assert not library.TRITONBACKEND_ModelBatcherInitialize(ctypes.byref(batcher), None)
    assert not library.TRITONBACKEND_ModelBatchInitialize(batcher, ctypes.byref(batch))
    answers = []
    for cost in costs:
        request = ctypes.create_string_buffer(bytes(SEAL_BYTES) + FRONT.pack(cost, 0, 0))
        assert not library.TRITONBACKEND_ModelBatchIncludeRequest(request, batch, ctypes.byref(included))
        answers.append(included.value)
    library.TRITONBACKEND_ModelBatchFinalize(batch)
    library.TRITONBACKEND_ModelBatcherFinalize(batcher)
    return answers


def test_admits_up_to_the_budget(hook):
    assert admit(hook, 100, [40, 40, 20, 1]) == [True, True, True, False]


def test_a_refused_request_leaves_room_for_a_smaller_request(hook):
    assert admit(hook, 100, [60, 50, 40]) == [True, False, True]


def test_always_admits_the_first(hook):
    assert admit(hook, 100, [5000, 1]) == [True, False]


def test_negative_costs_cannot_widen_the_budget(hook):
    assert admit(hook, 100, [60, -1000, 60]) == [True, True, False]


def test_an_unreadable_cost_counts_nothing_and_leaks_nothing(hook):
    triton, _ = hook
    triton.set_failing_input(1)
    assert admit(hook, 100, [60, 60]) == [True, True]
    triton.set_failing_input(0)
    assert triton.get_errors_alive() == 0


@pytest.mark.parametrize("text", [b"{}", config(0), config("none")])
def test_refuses_a_model_without_a_budget(hook, text):
    triton, library = hook
    triton.set_config(text)
    initialize: Callable[..., int] = library.TRITONBACKEND_ModelBatcherInitialize
    library.TRITONBACKEND_ModelBatcherInitialize.restype = ctypes.c_void_p
    error = initialize(ctypes.byref(ctypes.c_void_p()), None)
    assert b"max_batch_cost" in ctypes.string_at(error)
    triton.TRITONSERVER_ErrorDelete(ctypes.c_void_p(error))


def test_reads_the_budget_that_render_writes(hook):
    """Triton hands the hook its configuration as JSON of the same protobuf."""
    from google.protobuf.json_format import MessageToJson

    triton, library = hook
    _, inference, _ = composing_models(SPEC, "m", max_batch_requests=64, max_queue_delay_us=0, residency="on_demand")
    text = MessageToJson(inference, preserving_proto_field_name=True).encode()
    triton.set_config(text)
    batcher = ctypes.POINTER(ctypes.c_int64)()
    library.TRITONBACKEND_ModelBatcherInitialize.restype = None
    library.TRITONBACKEND_ModelBatcherInitialize(ctypes.byref(batcher), None)
    assert batcher[0] == SPEC.admission_cost


def test_no_compiler_means_no_hook(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert repository.build_hook(tmp_path) is None
