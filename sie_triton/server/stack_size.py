"""The stack size of tritonserver's threads.

Triton 24.10 puts on the stack a form's body twice, an entry for each piece of a chunked body, and a call for each
bracket of JSON. The usual 8 MB overflow with a body of 4.5 MB, 600,000 pieces, or 200,000 brackets. Only used pages
cost memory.
"""

import resource
from pathlib import Path

STACK_BYTES = 1024**3
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


def raise_stack_limit() -> None:
    """Raise the stack limit in a child before it starts tritonserver, whose threads take the limit as their size."""
    if OVERCOMMIT.read_text().strip() == "2":  # every page counts, used or not
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    # With an unlimited stack, glibc gives each thread only 2 MB.
    if soft == resource.RLIM_INFINITY or soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
