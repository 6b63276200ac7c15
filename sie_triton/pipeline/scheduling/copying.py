"""Rules for the copies of a busy model, as pure functions of times: when it asks for one, and when one goes.

A copy is a second worker. Where it goes, and that it is the first to leave when memory is short, the controller decides
(`controller/choice.py`). All times are monotonic, in nanoseconds; 0: it has not happened.
"""

from sie_triton.pipeline.limits import CopyLimits


def wants_copy(
    now_ns: int, *, crowded_since_ns: int, joined_ns: int = 0, left_ns: int = 0, limits: CopyLimits = CopyLimits()
) -> bool:
    """Return whether to ask for one copy more.

    Since `crowded_since_ns` the queue is longer than the passes that run; the latest copy computes since `joined_ns`,
    and one was taken or failed at `left_ns`.
    """
    if not crowded_since_ns or (left_ns and now_ns - left_ns < limits.again_s * 1e9):
        return False
    return now_ns - max(crowded_since_ns, joined_ns) >= limits.after_s * 1e9


def is_idle(now_ns: int, *, last_pass_ns: int, num_passes: int, limits: CopyLimits = CopyLimits()) -> bool:
    """Return whether a copy has been without a pass for `idle_s`, after which it ends; `num_passes` run now."""
    return not num_passes and now_ns - last_pass_ns >= limits.idle_s * 1e9
