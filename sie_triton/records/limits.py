"""Limits of the readers and writers of the records."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordLimits:
    """Times of one process; tests give their own."""

    # A load's wait for the controller's answer. A controller that starts or restarts gets `controller_start_s`.
    grant_look_s: float = 0.02
    grant_patience_s: float = 120.0
    controller_start_s: float = 10.0

    # Listings of the records of processes; the short one applies where there would be no room.
    listing_ns: int = 500_000_000
    fresh_listing_ns: int = 20_000_000
    # If inference has received none of the queued requests for this long, one more is let through: all may be lost.
    stuck_ns: int = 1_000_000_000
    # Minimum age of the count of other models before their records are read again, and time without progress after
    # which the queue of another model is no longer counted: its requests may have been lost.
    count_age_ns: int = 2_000_000
    forget_queue_ns: int = 10_000_000_000

    door_alive_s: float = 1.0  # for which a door counts as alive after a check
