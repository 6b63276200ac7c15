"""GPUs that are not there: their number, and workers whose memory is a number and whose passes sleep, one at a time.

The last digit of the memory is the number of the GPU that CUDA would show to the worker. PRETENDED_GPUS is how many
there are, PRETENDED_PASS_S how long a pass of a static model sleeps.
"""

import os
import sys
import time
from threading import Lock

from sie_triton.system.host import device

device.num_gpus = lambda: int(os.environ.get("PRETENDED_GPUS", "2"))


def sleep_in_passes(seconds):
    from sie_triton.models.families.static_embedding.adapter import StaticAdapter

    compute, gpu = StaticAdapter.forward, Lock()

    def forward(adapter, batch):
        with gpu:
            time.sleep(seconds)
        return compute(adapter, batch)

    StaticAdapter.forward = forward


if any(argument.startswith("sie_triton.pipeline.worker") for argument in sys.orig_argv):
    from sie_triton.engines import Engine

    Engine.used_bytes = lambda engine: 3_000_000_000 + int(os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
    if pass_s := float(os.environ.get("PRETENDED_PASS_S", "0")):
        sleep_in_passes(pass_s)
