"""A stage at its own seam."""

from collections.abc import Iterator

import pytest

from sie_triton.stages.inference import Inference
from sie_triton.stages.status import StatusWriter
from tests.stages import EchoWorker, spec


@pytest.fixture
def inference(tmp_path, request) -> Iterator[Inference]:
    """With an EchoWorker; parametrise it indirectly with changes of its spec."""
    stage = Inference(spec(**getattr(request, "param", {})), "cpu", StatusWriter(tmp_path, "m", "inference", 0))
    stage.directory = tmp_path
    stage.worker = EchoWorker()
    stage.load = lambda: stage.worker
    yield stage
    stage.close()
