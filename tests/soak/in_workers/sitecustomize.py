"""A leak in every forked worker, for `scripts/soak --leaky`: the leak gate must find it."""

import os
import sys
import threading
import time

MEGABYTES_PER_S = 1

kept = []


def leak():
    while True:
        kept.append(os.urandom(MEGABYTES_PER_S * 1_000_000))
        time.sleep(1)


def start():
    threading.Thread(target=leak, daemon=True).start()


if any("sie_triton.worker" in each for each in sys.orig_argv):  # the fork server of the workers
    os.register_at_fork(after_in_child=start)
