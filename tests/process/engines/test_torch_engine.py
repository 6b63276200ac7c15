"""The engine's calls for a GPU, with a fake CUDA that records them."""

import pytest
import torch

from sie_triton.engines.measurements import Measurements
from sie_triton.engines.torch.engine import TorchEngine
from tests.support.stages import spec


@pytest.mark.parametrize(("device", "calls"), [("cpu", []), ("cuda:1", [False])])
def test_cudnns_attention_is_not_used(monkeypatch, device, calls):
    """It builds a plan for every new shape."""
    made = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", made.append)
    TorchEngine(spec(), device, Measurements())
    assert made == calls


def test_memory_of_earlier_passes_is_returned(monkeypatch):
    """Otherwise it would be counted as resident."""
    held = {"weights": 300, "cached": 700}
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: held.update(cached=0))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: sum(held.values()))
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda _: None)
    engine = TorchEngine(spec(), "cuda:0", Measurements())
    before = engine.used_bytes()
    engine.free_unused_memory()
    assert before - engine.used_bytes() == 700
