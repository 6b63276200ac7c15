"""Limits of a door process, in addition to those that an operator sets."""

from dataclasses import dataclass

from sie_triton.http.limits import ConnectionLimits


@dataclass(frozen=True)
class DoorLimits:
    """Limits of a door, for all its clients."""

    connection: ConnectionLimits = ConnectionLimits()
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
