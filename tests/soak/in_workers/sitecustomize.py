"""Faults in every forked worker under `scripts/soak`: a token whose pass never ends, and a leak with `--leaky`."""

import os
import sys
import threading
import time

ENDLESS = 7592  # "hello"

MEGABYTES_PER_S = 1

kept = []


def leak():
    while True:
        kept.append(os.urandom(MEGABYTES_PER_S * 1_000_000))
        time.sleep(1)


def start():
    threading.Thread(target=leak, daemon=True).start()


def poison():
    """Make the pass of each adapter endless if one of its tokens is ENDLESS."""
    import sie_triton.families

    load_adapter = sie_triton.families.load_adapter

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

    sie_triton.families.load_adapter = load_poisoned


if any("sie_triton.worker" in each for each in sys.orig_argv):  # the fork server of the workers
    poison()
    if os.environ.get("SOAK_LEAKS"):
        os.register_at_fork(after_in_child=start)
