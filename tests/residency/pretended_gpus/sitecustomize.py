"""Two GPUs that are not there: the device files, and workers whose memory is a number.

The last digit of the number is that of the GPU that CUDA would show to the worker.
"""

import os
import sys
from pathlib import Path

from sie_triton.system.host import device

device.DEVICE_FILES = Path(__file__).parent / "dev"

if any(argument.startswith("sie_triton.pipeline.worker") for argument in sys.orig_argv):
    from sie_triton.engines import Engine

    Engine.used_bytes = lambda engine: 3_000_000_000 + int(os.environ["CUDA_VISIBLE_DEVICES"])
