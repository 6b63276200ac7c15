"""A periodic task."""

import threading

import pytest

from sie_triton.errors import BusyError
from sie_triton.pipeline.scheduling.threads import Sweep
from tests.support.threads import no_thread


def test_a_sweep_whose_thread_did_not_start_starts_later(monkeypatch):
    swept = threading.Event()
    sweep = Sweep("test", 0.01, swept.set)
    with monkeypatch.context() as patch:
        patch.setattr(threading, "_start_new_thread", no_thread)
        with pytest.raises(BusyError):
            sweep.start()
    sweep.start()
    assert swept.wait(60)
    sweep.close()
