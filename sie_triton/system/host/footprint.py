"""Measured memory of the server's processes on a CPU, the smallest sufficient memory limit, and sizes as text."""

import math

# A fork server that has imported PyTorch and transformers.
FORK_SERVER_BYTES = 300_000_000

# A worker with PyTorch but no weights: started by itself, and forked by a fork server. While weights are loaded, they
# are in memory at most twice.
INTERPRETER_BYTES = 200_000_000
FORKED_BYTES = 45_000_000

# GPU memory that CUDA itself takes for each process, and that forward passes take beside the weights, in bytes. Neither
# has been measured yet.
CUDA_CONTEXT_BYTES = 500_000_000
ACTIVATION_BYTES = 1_000_000_000

# Memory that a worker may take beside its need at rest and its passes: caches of compiled code, and free pages.
GROWTH_BYTES = 150_000_000

# Memory that a stage may take, without decoded images: its tokenizer, and the requests in progress.
STAGE_BYTES = 1_000_000_000

# tritonserver and the fork server of its stubs.
TRITON_BYTES = 25_000_000

# The three stages of a cold model, with stubs that are forked, and with stubs that are started by themselves.
FORKED_STAGES_BYTES = 3 * 9_000_000
STAGES_BYTES = 3 * 27_000_000


def server_bytes(num_models: int, *, forks_stubs: bool) -> int:
    """Estimate the memory of a server without any model in memory, in bytes.

    >>> server_bytes(4, forks_stubs=True)
    433000000
    """
    return FORK_SERVER_BYTES + TRITON_BYTES + num_models * (FORKED_STAGES_BYTES if forks_stubs else STAGES_BYTES)


def limit_for(num_bytes: float, threshold_percent: float) -> int:
    """Return the smallest limit, in whole megabytes, of which `threshold_percent` are at least `num_bytes`.

    >>> limit_for(850_000_000, 85), limit_for(850_000_001, 85)
    (1000000000, 1001000000)
    """
    return math.ceil(num_bytes * 100 / threshold_percent / 1e6) * 1_000_000


def gib(num_bytes: float) -> str:
    """
    >>> gib(1610612736)
    '1.50 GiB'
    """
    return f"{num_bytes / 2**30:.2f} GiB"
