"""Pools of a cluster, as a gateway knows them by heartbeats: workers, what they serve, and other gateways."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from time import monotonic, time
from types import MappingProxyType

from nats.aio.msg import Msg

from sie_triton.cluster import subjects
from sie_triton.cluster.limits import GatewayLimits
from sie_triton.cluster.messages import Health, Lease, clock_in
from sie_triton.cluster.model_files import ALL_POOLS, ModelFile, key
from sie_triton.cluster.policies.fair import window
from sie_triton.cluster.policies.leases import is_over
from sie_triton.cluster.policies.quantum import FIRST_OPEN
from sie_triton.cluster.workers import Workers
from sie_triton.contract import TASKS
from sie_triton.errors import Provisioning, Unreachable

# Headers, and metadata of gRPC, with which a request asks for a pool, or for a kind of machine.
POOL, PROFILE = "x-sie-pool", "x-sie-machine-profile"


@dataclass(frozen=True, slots=True)
class Served:
    """Models and ensembles that the workers of a pool serve.

    `limits` has the requests that the workers which have claimed a model may have open, `largest_limit` those of one
    worker. `at` is in seconds of the monotonic clock.
    """

    models: frozenset[str]
    ensembles: frozenset[str]
    limits: Mapping[str, int]
    largest_limit: int
    at: float

    @classmethod
    def of(cls, workers: Sequence[Health], at: float) -> "Served":
        limits: Counter[str] = Counter()
        for each in workers:
            limits.update(dict.fromkeys(each.claims, each.limit if each.is_ready else 0))
        return cls(
            frozenset(name for each in workers for name in each.models),
            frozenset(name for each in workers for name in each.ensembles),
            limits,
            max((each.limit for each in workers if each.is_ready), default=FIRST_OPEN),
            at,
        )


class Pools:
    """Belongs to one event loop. `own` is the pool of requests that ask for none.

    `profiles` are the kinds of machines that can be started, and `startable` the pools.
    """

    def __init__(
        self,
        own: str,
        profiles: Collection[str] = (),
        startable: Collection[str] = (),
        limits: GatewayLimits = GatewayLimits(),
    ) -> None:
        self._limits = limits
        self.workers = Workers(limits)
        self._asked_at: dict[tuple[str, str], float] = {}  # demand: a pool and a kind of machine, one of them empty
        self._profiles, self._startable = profiles, startable
        self._own = own
        self._heard_since = monotonic()
        self._served: dict[str, Served] = {}
        self._gateways: dict[str, float] = {}
        self.model_files: Mapping[str, ModelFile] = {}
        self.leases: Mapping[str, Lease] = {}

    @property
    def demand(self) -> Set[tuple[str, str]]:
        """Pools and kinds of machines that requests have asked for lately, and that have no worker; one name is empty.

        A scaling rule starts a pool from zero by it. Only names of the settings count: clients cannot make up any.
        """
        since = monotonic() - self._limits.demand_s
        return {wish for wish, asked_at in self._asked_at.items() if asked_at > since}

    async def hear_gateway(self, message: Msg) -> None:
        name = message.subject.rpartition(".")[2]
        has_room = name in self._gateways or len(self._gateways) < self._limits.max_gateways
        if has_room and clock_in(message.data) is not None:
            self._gateways[name] = monotonic()

    def listen_anew(self) -> None:
        """Take no worker for unknown until all of them can have told about themselves since now."""
        self._heard_since = monotonic()

    def forget_gateways(self) -> None:
        """Forget the gateways that are gone."""
        since = monotonic() - self._limits.gateway_stale_s
        self._gateways = {name: heard for name, heard in self._gateways.items() if heard >= since}

    def chosen(self, asked: Mapping[str, str] = MappingProxyType({})) -> str:
        """Return the pool for a request, by its headers POOL and PROFILE; without them the gateway's own.

        Raise InputError for a name that cannot be a pool's, Provisioning if its workers are awaited, and Unreachable if
        there is no worker.
        """
        name, profile = asked.get(POOL, ""), asked.get(PROFILE, "")
        if name:
            if name != name.lower() and self.is_leased(name.lower()) and name not in self.known():
                name = name.lower()  # as clients of SIE write the names of pools that they lease
            self._check(subjects.checked_name(name, POOL), profile)
            return name
        if not profile:
            return self._own
        if of_profile := [each.pool for each in self.workers.all() if each.profile == profile]:
            # A leased pool is for those who name it.
            return min(of_profile, key=lambda pool: (self.is_leased(pool), pool != self._own, pool))
        if profile in self._profiles:
            self._asked_at["", profile] = monotonic()
            raise Provisioning(f"{PROFILE}: no worker is a {profile} yet; retry")
        raise Unreachable(f"{PROFILE}: no worker is a {profile[:64]!r}; retry once one has started")

    def _check(self, name: str, profile: str) -> None:
        """Raise Provisioning or Unreachable if a pool has no worker, or none of a kind of machine."""
        workers = self.workers.alive(name)
        if self.is_leased(name) and not any(each.is_ready for each in workers):
            raise Provisioning(f"{POOL}: no worker has joined pool {name} yet; retry")
        if not workers and name != self._own:
            self._check_can_start(name)
            pools = ", ".join(self.workers.pools()) or "none"
            raise Unreachable(f"{POOL}: pool {name} has no worker (with workers: {pools}); retry once one has started")
        if profile and workers and profile not in {each.profile for each in workers}:
            found = ", ".join(sorted({each.profile for each in workers}))
            if profile in self._profiles:
                self._asked_at["", profile] = monotonic()
            raise Provisioning(f"{PROFILE}: pool {name} has no {profile[:64]!r} (it has {found}); retry")

    @property
    def can_start(self) -> bool:
        """True if there are pools that can be started."""
        return bool(self._startable)

    def _check_can_start(self, pool: str) -> None:
        """Note the demand for a pool of the settings that has no worker; raise Provisioning if it can be started."""
        if pool == self._own or pool in self._startable:
            self._asked_at[pool, ""] = monotonic()
        if pool in self._startable:
            raise Provisioning(f"{POOL}: pool {pool} has no worker yet; retry")

    def known(self) -> Set[str]:
        """Return the pools that have workers, or that this gateway has by its settings."""
        return {self._own, *self._startable, *self.workers.pools()}

    def is_leased(self, pool: str) -> bool:
        """Return True if a client has leased a pool, and renews the lease. No lease takes a pool of the settings."""
        lease = self.leases.get(pool)
        is_of_settings = pool == self._own or pool in self._startable
        return lease is not None and not is_of_settings and not is_over(lease, time(), self._limits.lease_ttl_s)

    def has_all(self, lease: Lease) -> bool:
        """Return True if a lease has the workers that it asks for."""
        ready = Counter(each.profile for each in self.workers.alive(lease.name) if each.is_ready)
        return all(ready[profile] >= number for profile, number in lease.gpus.items())

    def served(self, pool: str) -> Served:
        """Return what the workers of a pool serve, as of a moment ago at most."""
        now = monotonic()
        found = self._served.get(pool)
        if found is None or now - found.at >= self._limits.served_age_s:
            found = self._served[pool] = Served.of(self.workers.alive(pool), now)
        return found

    def model_of(self, pool: str, ensemble: str) -> str:
        """Return the model of an ensemble; empty if no worker of the pool serves it.

        Raise Provisioning if the pool's workers are awaited, and Unreachable if there is none, or if not all of them
        can have told this gateway about themselves.
        """
        served = self.served(pool)
        if not served.models:
            self._check_can_start(pool)
        if ensemble in served.models:
            return ensemble
        name, _, task = ensemble.rpartition("-")
        if ensemble in served.ensembles and task in TASKS and name in served.models:
            return name
        if self._is_configured(pool, ensemble):
            raise Unreachable(f"no worker of pool {pool} has got the model file of {ensemble[:200]} yet; retry")
        if not served.models or monotonic() - self._heard_since < self.workers.stale_s:
            raise Unreachable(f"no worker of pool {pool} is known to serve {ensemble[:200]} yet; retry")
        return ""

    def _is_configured(self, pool: str, ensemble: str) -> bool:
        """Return True if the config service has a file of the model of an ensemble."""
        if not subjects.MODEL.fullmatch(ensemble):
            return False
        name, _, task = ensemble.rpartition("-")
        names = (ensemble, name) if task in TASKS and name else (ensemble,)
        return any(not file.is_removed for name in names for file in self._files(pool, name))

    def is_removed(self, pool: str, model: str) -> bool:
        """Return True if the config service has removed a model, and no worker serves it any more."""
        files = self._files(pool, model)
        return bool(files) and all(file.is_removed for file in files) and not self.is_served(pool, model)

    def _files(self, pool: str, model: str) -> list[ModelFile]:
        found = (self.model_files.get(key(each, model)) for each in (pool, ALL_POOLS))
        return [file for file in found if file is not None]

    def is_served(self, pool: str, ensemble: str) -> bool:
        served = self.served(pool)
        return ensemble in served.models or ensemble in served.ensembles

    def is_claimed(self, pool: str, model: str) -> bool:
        """Return True if a worker fetches the work of a model."""
        return model in self.served(pool).limits

    def window(self, pool: str, model: str) -> int:
        """Return how many requests for a model this gateway may have in the queue."""
        served = self.served(pool)
        return window(served.limits.get(model, served.largest_limit), len(self._gateways) or 1)
