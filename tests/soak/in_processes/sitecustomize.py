"""What processes have under `scripts/soak` alone.

All have a clock that can be set: SOAK_CLOCK is a file with the seconds, a float64, that are added to `time.time` for
our own modules. gRPC's deadlines are times of day for its C core, too, whose clock stays.

Workers have a token whose pass never ends, and the HABITS that SOAK_HABITS names.
"""

import mmap
import os
import struct
import sys
import threading
import time
from functools import partial

ENDLESS = 7592  # "hello"

# Its calls of gRPC's compiled code, which has no frame of its own, look like its own calls of `time.time`.
ASKS_GRPC = "sie_triton.cluster.gateway.kserve"

MEGABYTES_PER_S = 1

kept = []


def leak():
    while True:
        kept.append(os.urandom(MEGABYTES_PER_S * 1_000_000))
        time.sleep(1)


HABITS = {"leak": leak}


def start(habit):
    threading.Thread(target=habit, daemon=True).start()


def poison():
    """Make the pass of each adapter endless if one of its tokens is ENDLESS."""
    import sie_triton.models.families

    load_adapter = sie_triton.models.families.load_adapter

    def load_poisoned(*args):
        adapter = load_adapter(*args)
        forward = adapter.forward

        def endless(batch):
            tokens = batch.features.get("input_ids")
            while tokens is not None and ENDLESS in tokens.values:
                pass
            return forward(batch)

        adapter.forward = endless
        return adapter

    sie_triton.models.families.load_adapter = load_poisoned


def set_clock(path, real=time.time):
    with open(path, "rb") as file:
        added = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)

    def clock():
        module = sys._getframe(1).f_globals.get("__name__", "")
        is_ours = module.startswith("sie_triton") and module != ASKS_GRPC
        return real() + (struct.unpack("d", added)[0] if is_ours else 0.0)

    time.time = clock


if "SOAK_CLOCK" in os.environ:
    set_clock(os.environ["SOAK_CLOCK"])

if any("sie_triton.pipeline.worker" in each for each in sys.orig_argv):  # the fork server of the workers
    poison()
    for name in os.environ.get("SOAK_HABITS", "").split():
        os.register_at_fork(after_in_child=partial(start, HABITS[name]))
