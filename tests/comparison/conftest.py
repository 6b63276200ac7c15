"""PyTorch computes with one thread; `library` is the reference of a module."""

import pytest

from tests.support import one_thread  # noqa: F401


@pytest.fixture(scope="module")
def library(request, directory):
    """The module's `Library` over the files that ours reads."""
    return request.module.Library(directory)
