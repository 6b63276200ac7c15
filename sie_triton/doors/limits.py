"""Limits of a door process, in addition to those that an operator sets."""

from dataclasses import dataclass

from sie_triton.http.limits import ConnectionLimits


@dataclass(frozen=True)
class BatchLimits:
    """Limits of files and batches; numbers of files and batches are those of one token."""

    file_bytes: int = 200 * 1024**2  # of an upload with its form
    num_files: int = 1000
    num_batches: int = 1000
    num_requests: int = 50_000  # of a batch
    line_bytes: int = 16 * 1024**2
    num_errors: int = 100  # of a file that are named
    lifetime_s: int = 30 * 86400  # of files and of the records of batches
    completion_s: int = 86400
    abandoned_s: float = 3600.0  # age of content without a record from which it is what a dead process has left

    # The process that runs batches.
    poll_s: float = 1.0
    sweep_s: float = 60.0
    num_running: int = 4  # batches at a time
    num_calls: int = 4  # of Triton at a time, for all batches
    gather_s: float = 0.02
    num_windows: int = 3  # consecutive parts of a batch in progress; the answers to their requests are in memory
    window_requests: int = 256
    window_bytes: int = 4 * 1024**2
    num_tries: int = 10  # of a request that fails because the server is away; a busy server is asked until the deadline
    max_pause_s: float = 60.0  # between two tries


@dataclass(frozen=True)
class DoorLimits:
    """Limits of a door, for all its clients."""

    connection: ConnectionLimits = ConnectionLimits()
    batch: BatchLimits = BatchLimits()
    drain_timeout_s: int = 7  # of the requests in progress, after SIGTERM

    # Bodies. A timeout is extended by one second for every `body_bytes_per_s` bytes received.
    body_timeout_s: float = 10.0
    body_bytes_per_s: int = 256 * 1024
    small_body_bytes: int = 32 * 1024  # a larger one is measured and decoded on a thread
    num_values: int = 2**20  # objects, lists, their members and the keys of objects
    slow_upload_s: float = 2.0  # age from which an upload may be ended for newer requests when memory is short

    # Requests of one short text, which share calls of Triton.
    num_shared_calls: int = 2  # at a time
    num_shared_texts: int = 32  # of one call
    shared_text_length: int = 2048  # characters; the others would wait for a longer text
    shared_wait_s: float = 0.5  # for another call to end; then a request waits in Triton, whose answer says for what
    shared_grace_s: float = 1.0  # Triton answers at the deadline of the call, which may be `shared_wait_s` later

    # The server behind the door.
    config_lifetime_s: float = 30.0  # of a model's configuration in the cache
    state_lifetime_s: float = 0.2  # of the models' states in the cache
    version_poll_s: float = 1.0  # while Triton does not answer yet
    lost_call_poll_s: float = 0.5
    part_metrics_bytes: int = 16 * 1024**2  # 2,000 models with traffic have about that

    # Watchers of the status.
    status_period_s: float = 0.2
    num_watchers: int = 64
