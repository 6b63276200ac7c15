"""PyTorch computes with one thread."""

from tests.support import one_thread  # noqa: F401
