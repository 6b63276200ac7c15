"""GPUs that are not there: their number, and workers whose memory is a number and whose passes sleep, one at a time.

The last digit of the memory is the number of the GPU that CUDA would show to the worker. PRETENDED_GPUS is how many
there are, PRETENDED_PASS_S how long a pass sleeps. A pass is computed on the CPU.
"""

import os
import sys
import time
from threading import Lock

from sie_triton.system.host import device

device.num_gpus = lambda: int(os.environ.get("PRETENDED_GPUS", "2"))


class Pretended(str):
    """Name of a CPU for PyTorch, which we take for a GPU."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return other != "cpu" and str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other


def sleep_in_passes(seconds):
    load_adapter, gpu = families.load_adapter, Lock()

    def load_slow_adapter(*given):
        adapter = load_adapter(*given)
        compute = adapter.forward

        def forward(batch):
            with gpu:
                time.sleep(seconds)
            return compute(batch)

        adapter.forward = forward
        return adapter

    families.load_adapter = load_slow_adapter


if any(argument.startswith("sie_triton.pipeline.worker") for argument in sys.orig_argv):
    from sie_triton import engines
    from sie_triton.models import families

    open_engine = engines.open_engine

    def pretended_engine(spec, device, measurements):
        engine = open_engine(spec, Pretended("cpu"), measurements)
        engine.used_bytes = lambda: 3_000_000_000 + int(os.environ.get("CUDA_VISIBLE_DEVICES", "0"))
        return engine

    engines.open_engine = pretended_engine
    if pass_s := float(os.environ.get("PRETENDED_PASS_S", "0")):
        sleep_in_passes(pass_s)
