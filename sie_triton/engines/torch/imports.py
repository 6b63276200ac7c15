"""The imports of every worker: seconds of work that the fork server does once for all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sie_triton.engines.torch.allocator import limit_kept_memory
from sie_triton.engines.torch.openmp import wait_briefly

VISIBLE = "CUDA_VISIBLE_DEVICES"


def import_all() -> None:
    wait_briefly()
    limit_kept_memory()
    with without_parts_of_gpus():
        from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, PreTrainedModel  # noqa: F401
        from transformers.models.bert import modeling_bert  # noqa: F401

        import sie_triton.engines.torch.engine  # noqa: F401


@contextmanager
def without_parts_of_gpus() -> Iterator[None]:
    """Within the context, show a whole GPU instead of MIG parts, which PyTorch counts by CUDA instead of by NVML."""
    given = os.environ.get(VISIBLE, "")
    if given.startswith("MIG-"):
        os.environ[VISIBLE] = "0"
    try:
        yield
    finally:
        if given:
            os.environ[VISIBLE] = given
