"""Size and use of the memory of the devices that models are loaded to."""

import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from types import MappingProxyType

import psutil

from sie_triton.controller.limits import ControllerLimits
from sie_triton.system.host.container import container_memory
from sie_triton.system.host.device import gpu_name
from sie_triton.system.host.footprint import FORK_SERVER_BYTES
from sie_triton.system.host.gpu_memory import GpuLost, gpu_memory
from sie_triton.system.host.process_memory import Share, private_bytes, share_of
from sie_triton.system.processes.pids import children_by_parent, is_alive, represented_pid

log = logging.getLogger(__name__)

# Names of the Python backend's shared memory. Our launcher chooses a prefix for its tritonserver alone; several
# servers share Triton's own prefix.
OWN_PREFIX = re.compile(r"/dev/shm/sie_\d+_[0-9a-f]+_")
REGION = re.compile(r"/dev/shm/(?:sie_\d+_[0-9a-f]+_|triton_python_backend_shm_region_)\S+$", re.MULTILINE)

LIMIT_SETTING = "SIE_MEMORY_LIMIT_BYTES"


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a device, in bytes: one immutable measurement.

    `source` names the setting, container or machine that `used` and `limit` belong to. `server` is the part of `used`
    that the server takes without any model, `least_server` its minimum so far; both are 0 on a GPU. A GPU that
    `is_lost` cannot be measured now: the numbers are the last ones.
    """

    used: int
    limit: int
    source: str
    server: int = 0
    least_server: int = 0
    is_lost: bool = False

    def over(self, threshold_percent: float) -> int:
        """Return the bytes used beyond a share of the limit; negative if there is room."""
        return self.used - int(self.limit * threshold_percent / 100)


def total(memories: Sequence[DeviceMemory]) -> DeviceMemory:
    """Return the memory of all devices together."""
    if len(memories) == 1:
        return memories[0]
    used, limit = (sum(getattr(each, name) for each in memories) for name in ("used", "limit"))
    return DeviceMemory(used, limit, f"{len(memories)} GPUs")


class Meter:
    """Measures the memory of a server on `device`, a GPU or cpu. One thread calls it.

    With a `limit` in bytes, the use is that of the server's own processes, else that of the container or the machine.
    All processes are measured together, because a fork moves memory from one to another. They are measured anew when
    the set of processes has changed, or when the measurement is too old by `clock`.
    """

    def __init__(
        self,
        device: str,
        limit: int,
        limits: ControllerLimits = ControllerLimits(),
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._device, self._limit, self._clock = device, limit, clock
        self._max_age_s = limits.measure_s if limit else limits.server_share_age_s
        self._stubs = Shares(limits.forked_share_age_s)
        self._known: tuple[object, float, DeviceMemory] | None = None
        self._latest_gpu = DeviceMemory(0, 1, device)
        self._least_server = sys.maxsize

    def measure(
        self,
        triton_pid: int,
        workers: Mapping[int, int] = MappingProxyType({}),
        fork_servers: Set[int] = frozenset(),
        importing: Set[int] = frozenset(),
        of_workers: int = 0,
    ) -> DeviceMemory:
        """Return the latest measurement, or a new one if that is too old.

        `workers` maps the pid of each worker to the time when it loaded its weights, 0 while it loads: the next load is
        granted only after weights just loaded have been measured. `fork_servers` are the fork servers of workers and
        stubs; one that is still `importing` counts with the memory that it will take. `of_workers` is the memory of
        this GPU that workers report. If the limit is below the GPU's size, only that counts, because evicting models
        cannot free the memory of other programs.
        """
        if self._device != "cpu":
            self._latest_gpu = self._gpu(of_workers)
            return self._latest_gpu
        whose, now = (triton_pid, workers, fork_servers), self._clock()
        known = self._known if self._known is not None and self._known[0] == whose else None
        if known is None or now - known[1] > self._max_age_s:
            measure = _shares.anew if known is None else _shares
            shares = {pid: measure(pid) for pid in (*workers, *fork_servers)}
            known = self._known = whose, now, self._measured(triton_pid, workers.keys(), shares)
        own, coming = known[2], sum(max(0, FORK_SERVER_BYTES - _shares(pid).total) for pid in importing)
        found = own if self._limit else _container() or _machine()
        server = own.server + coming
        self._least_server = min(self._least_server, server) if triton_pid else self._least_server
        return replace(found, used=found.used + coming, server=server, least_server=min(self._least_server, server))

    def _gpu(self, of_workers: int) -> DeviceMemory:
        latest = self._latest_gpu
        try:
            name = gpu_name(self._device)
            used, total = gpu_memory(name)
        except (GpuLost, LookupError) as exc:
            if not latest.is_lost:
                log.error("%s cannot be measured, and gets no models meanwhile: %s", self._device, exc)
            return latest if latest.is_lost else replace(latest, source=f"{latest.source}, lost", is_lost=True)
        if latest.is_lost:
            log.info("%s can be measured again", self._device)
        if self._limit and self._limit < total:
            return DeviceMemory(of_workers, self._limit, LIMIT_SETTING)
        return DeviceMemory(used, total, f"GPU {name}")

    def _measured(self, triton_pid: int, workers: Set[int], forked: Mapping[int, Share]) -> DeviceMemory:
        of_models = sum(forked[pid].own for pid in workers)
        others = set(processes(triton_pid)) - forked.keys()
        stubs = others & {stub for stub in map(represented_pid, others) if stub}
        self._stubs.keep(stubs)
        used = sum(map(private_bytes, others - stubs)) + sum(self._stubs(stub).total for stub in stubs)
        used += sum(share.total for share in forked.values())
        return DeviceMemory(used, self._limit, LIMIT_SETTING, used - of_models)


def processes(triton_pid: int) -> list[int]:
    """Return tritonserver and its descendants, and the stubs of stand-ins and theirs; empty if it has ended."""
    children, found = children_by_parent(), {triton_pid: None} if is_alive(triton_pid) else {}
    left = list(found)
    while left:
        pid = left.pop()
        stub = represented_pid(pid)
        new = [each for each in (*children.get(pid, ()), *([stub] if stub else [])) if each not in found]
        found.update(dict.fromkeys(new))
        left += new
    return list(found)


def orphaned_regions(triton_pid: int) -> set[Path]:
    """Return shared memory of this tritonserver's Python backend that none of the processes below it maps."""
    regions, *others = map(mapped_regions, processes(triton_pid) or [0])
    for prefix in {found[0] for region in regions if (found := OWN_PREFIX.match(str(region)))}:
        regions |= set(Path("/dev/shm").glob(f"{Path(prefix).name}*"))
    return regions.difference(*others)


def mapped_regions(pid: int) -> set[Path]:
    """Return mapped regions whose names our launcher or Triton chose; those of clients are excluded.

    Raise OSError if there is no file handle left to look: nothing may be taken for unused then.
    """
    with suppress(FileNotFoundError, ProcessLookupError, PermissionError):
        return {Path(found) for found in REGION.findall(Path(f"/proc/{pid}/maps").read_text())}
    return set()


def worker_bytes(pid: int) -> int:
    """Bytes that ending this worker frees; pages shared with its fork server count for the server."""
    return _shares(pid).own if Path(f"/proc/{pid}").exists() else 0


class Shares:
    """The share of each process, measured at most once in `max_age_s`; its growth since then is added.

    Measuring takes the system 2 ms, more for a large process. New pages are not shared with the fork server; what else
    changes a share are forks and ends of other processes. One thread calls it.
    """

    def __init__(self, max_age_s: float) -> None:
        self._max_age_s = max_age_s
        self._known: dict[int, tuple[float, int, Share]] = {}

    def __call__(self, pid: int) -> Share:
        measured_at, then, share = self._known.get(pid, (0.0, 0, Share()))
        if not then or monotonic() - measured_at > self._max_age_s:
            return self.anew(pid)
        grown = private_bytes(pid) - then
        return Share(max(0, share.total + grown), max(0, share.own + grown))

    def anew(self, pid: int) -> Share:
        now, then, share = monotonic(), private_bytes(pid), share_of(pid)
        share = share if share.total else Share(then, then)  # the system may refuse the exact measurement
        self._known = {each: known for each, known in self._known.items() if now - known[0] <= self._max_age_s}
        self._known[pid] = now, then, share
        return share

    def keep(self, pids: Set[int]) -> None:
        """Forget all processes but these."""
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}


_shares = Shares(ControllerLimits.share_age_s)


def _container() -> DeviceMemory | None:
    known = container_memory()
    return None if known is None else DeviceMemory(*known, "container")


def _machine() -> DeviceMemory:
    memory = psutil.virtual_memory()
    return DeviceMemory(memory.total - memory.available, memory.total, "machine")
