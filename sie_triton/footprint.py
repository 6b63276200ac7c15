"""Memory that the processes of a server take, as measured on a CPU, and the limit that is large enough for it."""

import math

# A nursery that has imported PyTorch and transformers.
NURSERY_BYTES = 300_000_000

# A worker with PyTorch and no weights: started by itself, and forked by a nursery. Loading has weights twice at most.
INTERPRETER_BYTES = 200_000_000
FORKED_BYTES = 45_000_000

# tritonserver with the nursery of its stubs.
TRITON_BYTES = 25_000_000

# The three stages of a cold model, each with a stub that is forked or one that is started by itself.
FORKED_STAGES_BYTES = 3 * 9_000_000
STAGES_BYTES = 3 * 27_000_000

# Limits are named in steps of so many bytes.
LIMIT_STEP = 1_000_000


def server_bytes(num_models: int, *, forks_stubs: bool) -> int:
    """Estimate what a server takes that has no model in memory.

    >>> server_bytes(4, forks_stubs=True)
    433000000
    """
    return NURSERY_BYTES + TRITON_BYTES + num_models * (FORKED_STAGES_BYTES if forks_stubs else STAGES_BYTES)


def limit_for(num_bytes: float, threshold_percent: float) -> int:
    """Return the smallest limit, in steps of LIMIT_STEP bytes, of which `num_bytes` are within `threshold_percent`.

    >>> limit_for(850_000_000, 85), limit_for(850_000_001, 85)
    (1000000000, 1001000000)
    """
    return math.ceil(num_bytes * 100 / threshold_percent / LIMIT_STEP) * LIMIT_STEP
