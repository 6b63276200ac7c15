"""The shell around a request of Triton's Python backend, with the backend's module replaced by an empty one."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from sie_triton.errors import InputError

MODULE = "sie_triton.pipeline.stages.triton"


@pytest.fixture
def triton(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("stub"))
    yield importlib.import_module(MODULE)
    del sys.modules[MODULE]


@pytest.mark.parametrize(("field", "getter"), [("id", "request_id"), ("parameters", "parameters")])
def test_text_of_the_client_that_is_not_utf_8_is_refused(triton, field, getter):
    """Triton's JSON reader lets it through, and the backend fails to make a string of it."""
    request = triton.TritonRequest(SimpleNamespace(**{getter: lambda: b"\xed\xa0\x80".decode()}))
    with pytest.raises(InputError, match=f"{field}: cannot be read; send UTF-8 text") as caught:
        getattr(request, field)
    assert caught.value.field == field


def test_answers_share_only_equal_tensors_of_a_few_bytes(triton):
    triton.pb_utils.Tensor = lambda name, array: SimpleNamespace(name=name, array=array)

    def made(name, values, dtype):
        tensor = triton._shared_tensor(name, np.array(values, dtype))
        assert (tensor.name, tensor.array.dtype, tensor.array.tolist()) == (name, dtype, [values])
        return tensor

    given = [("count", [3], np.int32), ("count", [4], np.int32), ("more", [3], np.int32), ("cut", [True, False], bool)]
    given += [("count", [], np.int32), ("vectors", [], np.float32), ("texts", [], object)]
    tensors = [made(*each) for each in given]
    assert [made(*each) for each in given] == tensors
    assert len(set(map(id, tensors))) == len(tensors)
    assert made("count", [3, 4], np.int32) is not made("count", [3, 4], np.int32)
