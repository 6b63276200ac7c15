"""The shell around a request of Triton's Python backend, with the backend's module replaced by an empty one."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

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
