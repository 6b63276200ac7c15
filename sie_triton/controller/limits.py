"""Limits of the controller."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ControllerLimits:
    """Times in seconds, sizes and counts of one controller; tests give their own."""

    # Between two rounds while something happens, and at most; between two looks whether something has happened.
    round_s: float = 0.2
    rest_s: float = 5.0
    look_s: float = 1.0

    # Backoff between attempts to replace a process, or to make Triton serve the repository: doubled each time.
    first_pause_s: float = 1.0
    longest_pause_s: float = 30.0

    # Pause between two measurements of all processes. Lifetimes of the shares of a process, which take the system
    # milliseconds each, of a forked stub's, and of the server's own without a limit.
    measure_s: float = 1.0
    share_age_s: float = 10.0
    forked_share_age_s: float = 3600.0
    server_share_age_s: float = 300.0

    # After so long, memory of an ended process has been freed and measured. No model is evicted meanwhile.
    settle_s: float = 2.0

    # Maximum wait of a load for memory, soon after which its stage would load without a grant; and the minimum before
    # it is refused, within which tokenizers and ending processes free their memory.
    max_grant_wait_s: float = 110.0
    min_grant_wait_s: float = 5.0
    overtaking_s: float = 10.0  # loads that fit may overtake an older one that waits for evictions
    recycle_after_s: float = 30.0  # an unused tokenizer of a cold or failed model is freed; at once if memory is short

    superseded_s: float = 30.0  # until an idle process that was replaced is killed; Triton ends it within seconds

    # Scans for orphaned shared memory, which read the maps of all processes. The short interval applies for a while
    # after a death, and while some is found.
    scan_s: float = 3.0
    rare_scan_s: float = 300.0
    after_death_s: float = 30.0

    # A change of models: old steps are unloaded once idle for so long (between two stages a request is in neither for
    # milliseconds), checked for new requests, and faulty files read again, because weights may come later.
    unload_after_s: float = 2.0
    check_steps_s: float = 5.0
    read_faulty_s: float = 60.0

    # Names of known models that wait; one that no request has repeated is dropped, one that cannot be served refused.
    max_waiting_names: int = 64
    max_refused_names: int = 1000
    forget_name_s: float = 30.0
    refuse_name_s: float = 60.0
    min_stay_s: float = 10.0  # a model that was added does not leave: its first request has not come yet
    in_use_s: float = 5.0  # after its last request

    max_loads: int = 16
    max_swaps: int = 4
    triton_timeout_s: float = 60.0  # a new process takes a second; a stopped tritonserver never answers
    turn_s: float = 5.0  # a process that hangs while it starts keeps the other models from loading for so long

    # Looks at tritonserver, and the timeout of each; it is long, because a busy Triton must not be taken for a hung
    # one. After so many silent ones in a row it is ended: a minute, or half of it if it refuses connections.
    watch_s: float = 5.0
    watch_timeout_s: float = 5.0
    max_silent_looks: int = 6

    # Files of traffic are listed so often. The status shows latencies of the last window, by so many moments.
    list_traffic_s: float = 1.0
    traffic_window_s: float = 60.0
    num_moments: int = 12

    # The HTTP API: bodies, the wait of a request for a known model to be served, and served models in an error.
    max_body_bytes: int = 1024**2
    mention_wait_s: float = 25.0
    max_names_shown: int = 12
