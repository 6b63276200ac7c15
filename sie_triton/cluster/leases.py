"""Leases in the queue: a bucket that gateways write, and that sidecars follow."""

import logging

from sie_triton.cluster.messages import Lease, Malformed

log = logging.getLogger(__name__)


def read_lease(value: bytes) -> Lease | None:
    """Return the lease of an entry; None for one that is no lease."""
    try:
        return Lease.read(value)[0]
    except Malformed as exc:
        log.warning("leases: %s", exc)
        return None
