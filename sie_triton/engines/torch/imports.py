"""What every worker imports before it can load: seconds of work that one process can do for all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sie_triton.engines.torch.openmp import wait_briefly

VISIBLE = "CUDA_VISIBLE_DEVICES"


def import_all() -> None:
    wait_briefly()
    with without_parts_of_gpus():
        from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, PreTrainedModel  # noqa: F401
        from transformers.models.bert import modeling_bert  # noqa: F401

        import sie_triton.engines.torch.engine  # noqa: F401


@contextmanager
def without_parts_of_gpus() -> Iterator[None]:
    """Inside, a whole GPU is visible if parts of one (MIG) are: PyTorch does not count these by NVML, but by CUDA."""
    given = os.environ.get(VISIBLE, "")
    if given.startswith("MIG-"):
        os.environ[VISIBLE] = "0"
    try:
        yield
    finally:
        if given:
            os.environ[VISIBLE] = given
