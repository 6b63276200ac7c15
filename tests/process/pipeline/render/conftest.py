"""A repository that follows its model files, without a compiler."""

import os

import pytest

from sie_triton.pipeline.render import refresh as module
from tests.support.refreshing import RefreshedServer


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No compiler, and each test stays where it is."""
    monkeypatch.setattr(module, "build_hook", lambda _: None)
    monkeypatch.setattr(os, "chdir", lambda _: None)


@pytest.fixture
def server(tmp_path) -> RefreshedServer:
    made = RefreshedServer(tmp_path)
    made.file("a")
    made.file("b")
    made.start()
    return made
