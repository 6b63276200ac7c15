"""Choose the pool in which a worker should be: its own, or one that a client has leased."""

from collections.abc import Iterable, Sequence

from sie_triton.cluster.limits import ClusterLimits
from sie_triton.cluster.messages import Health, Lease


def is_over(lease: Lease, now: float, ttl_s: float = ClusterLimits.lease_ttl_s) -> bool:
    """Return True if a lease has not been renewed for `ttl_s`; `now` is in seconds of the Unix epoch."""
    return now - lease.renewed_at > ttl_s


def best_pool(
    own: Health,
    home: str,
    leases: Iterable[Lease],
    others: Iterable[Health],
    now: float,
    ttl_s: float = ClusterLimits.lease_ttl_s,
) -> str:
    """Return the pool in which the worker `own` should be, whose own pool is `home`.

    Workers of `home` join a lease until it has as many of their kind as it may; surplus ones return, and all do at its
    end. The first of `home` by name always stays, so that the pool keeps a worker. All workers decide by themselves,
    and by the same heartbeats; if these differ for a moment, a lease may have too many for as long.

    >>> def worker(name, pool="home", moves_to=""):
    ...     return Health(name, pool, "l4", True, [], [], {}, 0, 0, 10, moves_to=moves_to)
    >>> lease = Lease("eval", "home", {"l4": 1}, {}, 0, 0.0, 0.0)
    >>> workers = [worker("a"), worker("b"), worker("c")]
    >>> [best_pool(each, "home", [lease], workers, 1.0) for each in workers]
    ['home', 'eval', 'home']
    >>> workers = [worker("a"), worker("b", moves_to="eval"), worker("c", "eval")]
    >>> [best_pool(each, "home", [lease], workers, 1.0) for each in workers]
    ['home', 'eval', 'home']
    >>> best_pool(workers[1], "home", [lease], workers, 1201.0)
    'home'
    """
    workers = _present((*(each for each in others if each.worker != own.worker), own))
    present = sorted(
        (lease for lease in leases if not is_over(lease, now, ttl_s)), key=lambda each: (each.at, each.name)
    )
    for lease in present:
        if lease.name == pool_of(own):
            members = _members(lease, own.profile, workers)
            return lease.name if own.worker in members[: limit(lease, own.profile)] else home
    free = sorted(each.worker for each in workers if pool_of(each) == home and each.is_ready)[1:]
    kinds = {each.worker: each.profile for each in workers}
    for lease in present:
        if lease.source == home:
            missing = limit(lease, own.profile) - len(_members(lease, own.profile, workers))
            joining = [name for name in free if kinds[name] == own.profile][: max(0, missing)]
            if own.worker in joining:
                return lease.name
            free = [name for name in free if name not in joining]
    return home


def pool_of(worker: Health) -> str:
    """Return the pool of a worker, or the one to which it is on its way."""
    return worker.moves_to or worker.pool


def _present(workers: Sequence[Health]) -> Sequence[Health]:
    """Return the workers without the last heartbeats of those that have arrived in another pool."""
    found = {(each.worker, each.pool) for each in workers}
    return [each for each in workers if (each.worker, each.moves_to) not in found]


def limit(lease: Lease, profile: str) -> int:
    """Return how many workers of a kind of machine a lease may have."""
    return int(lease.caps.get(profile, lease.gpus.get(profile, 0)))


def _members(lease: Lease, profile: str, workers: Iterable[Health]) -> Sequence[str]:
    return sorted(each.worker for each in workers if pool_of(each) == lease.name and each.profile == profile)
