"""The stack of tritonserver's threads.

Triton 24.10 puts a form's body on it twice, an entry for each piece of a chunked body, and a call for each bracket of
JSON: with the usual 8 MB a body of 4.5 MB, 600,000 pieces, or 200,000 brackets overrun it. Only used pages cost memory.
"""

import resource
from pathlib import Path

STACK_BYTES = 1024**3
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
STRICT = "2"  # every page counts, used or not


def deepen() -> None:
    """For a child, before it starts tritonserver; its threads take the limit as their size."""
    if OVERCOMMIT.read_text().strip() == STRICT:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    wanted = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    # Unlimited is no larger: glibc makes it 2 MB a thread.
    if soft == resource.RLIM_INFINITY or soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
