"""No process is started: preprocess reads the tokenizers in a model's directory as they are."""

import pytest

from sie_triton.pipeline.stages import preprocess


@pytest.fixture(autouse=True)
def tokenizers_as_they_are(monkeypatch):
    monkeypatch.setattr(preprocess, "with_tokenizers", lambda spec, directory, *_: directory)
