"""A repository that follows its model files, without a compiler."""

import os
from functools import cache
from importlib import import_module

import pytest

from sie_triton.models.catalog.load import known_model
from sie_triton.pipeline.render import refresh as module
from tests.support.refreshing import RefreshedServer

shipped_once = cache(known_model)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """No compiler, the package's model files are read once, and each test stays where it is."""
    monkeypatch.setattr(module, "build_hook", lambda _: None)
    monkeypatch.setattr(import_module("sie_triton.models.catalog.select"), "known_model", shipped_once)
    monkeypatch.setattr(os, "chdir", lambda _: None)


@pytest.fixture
def server(tmp_path) -> RefreshedServer:
    made = RefreshedServer(tmp_path)
    made.file("a")
    made.file("b")
    made.start()
    return made
