"""Reasons of failed loads are distinguished, and reach the client."""

import pytest

from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.engine import TorchEngine
from sie_triton.errors import LoadError
from sie_triton.models.weights import locate
from sie_triton.pipeline.worker.__main__ import load_error, naming_out_of_memory
from tests.support.stages import spec


def test_load_errors_of_files_have_their_reason(tmp_path):
    for weights, reason in ((str(tmp_path / "nothing"), "not found"), ("package://no_such_package/x", "dependency")):
        with pytest.raises(LoadError) as caught:
            locate(weights, allow_hub=False)
        assert caught.value.reason == reason


def test_load_errors_of_the_worker_have_their_reason():
    caused = LoadError("weights cannot be loaded", "corrupt")
    caused.__cause__ = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
    engine = TorchEngine(spec(), "cpu", Measurements())
    with pytest.raises(LoadError) as told, naming_out_of_memory(engine, "the weights"):
        raise caused
    assert str(told.value) == "there is not enough memory for the weights"
    assert load_error(told.value).reason == "out of memory"
    assert load_error(ImportError("No module named 'einops'")).reason == "dependency"
    assert load_error(LoadError("x", "corrupt")).reason == "corrupt"
    assert load_error(ZeroDivisionError()).reason == "failed"
