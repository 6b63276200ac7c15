"""How much memory there is and how much of it is used. One value for the device that models are loaded to."""

import re
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import psutil

from sie_triton.container import container_memory
from sie_triton.device import visible_gpus
from sie_triton.process_memory import anonymous_bytes
from sie_triton.processes.pids import children_by_parent, is_alive
from sie_triton.processes.stand_in import stood_for

# Names of the Python backend's shared memory: what a launcher of ours chose for its tritonserver alone, or Triton's
# own, which several share.
OWN_PREFIX = re.compile(r"/dev/shm/sie_\d+_[0-9a-f]+_")
REGION = re.compile(r"/dev/shm/(?:sie_\d+_[0-9a-f]+_|triton_python_backend_shm_region_)\S+$", re.MULTILINE)

# Asking the system takes milliseconds.
MAX_AGE_S = 1.0
FORKED_AGE_S = 60.0


@dataclass(frozen=True, slots=True)
class Memory:
    """How much memory there is on a device and how much is used, in bytes: one measurement, which nobody changes.

    `source` says whose figures these are.
    """

    used: int
    limit: int
    source: str

    def over(self, threshold_percent: float) -> int:
        """How many bytes are used beyond that share of the limit; negative where there is room."""
        return self.used - int(self.limit * threshold_percent / 100)


def sample(device: str, triton_pid: int, worker_pids: Iterable[int], limit: int) -> Memory:
    """That of `device`, cuda:N or cpu: for a CPU our own processes where there is a `limit`, else container or machine.

    `worker_pids` are of processes that may not be below tritonserver.
    """
    if device.startswith("cuda"):
        return _gpu(device, limit)
    if limit:
        workers = frozenset(worker_pids)
        used = _others(triton_pid, workers) + sum(map(worker_bytes, workers))
        return Memory(used, limit, "SIE_MEMORY_LIMIT_BYTES")
    return _container() or _machine()


def server_bytes(device: str, triton_pid: int, worker_pids: Iterable[int]) -> int:
    """What the server itself takes of the device, with no model in memory."""
    return 0 if device.startswith("cuda") else _others(triton_pid, frozenset(worker_pids))


def processes(triton_pid: int) -> list[int]:
    """tritonserver and everything below it, and below the stubs that stand-ins hold; none where it has ended."""
    children, found = children_by_parent(), {triton_pid: None} if is_alive(triton_pid) else {}
    left = list(found)
    while left:
        pid = left.pop()
        stub = stood_for(pid)
        new = [each for each in (*children.get(pid, ()), *([stub] if stub else [])) if each not in found]
        found.update(dict.fromkeys(new))
        left += new
    return list(found)


def orphaned_regions(triton_pid: int) -> set[Path]:
    """Shared memory of this tritonserver's Python backend that none of the processes below it maps."""
    regions, *others = map(mapped_regions, processes(triton_pid) or [0])
    for prefix in {found[0] for region in regions if (found := OWN_PREFIX.match(str(region)))}:
        regions |= set(Path("/dev/shm").glob(f"{Path(prefix).name}*"))
    return regions.difference(*others)


def mapped_regions(pid: int) -> set[Path]:
    """Regions with a name that a launcher of ours or Triton gave them, so that no client's are among them."""
    with suppress(OSError):
        return {Path(found) for found in REGION.findall(Path(f"/proc/{pid}/maps").read_text())}
    return set()


def private_bytes(pid: int) -> int:
    """What would be free if this process ended, near enough: pages that are neither a file's nor shared."""
    try:
        resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    except (OSError, ValueError):
        return 0
    return (resident - shared) * 4096


class ForkedBytes:
    """What stubs that were forked would free, which takes the system 2 ms to say.

    So it is asked once in FORKED_AGE_S for each, and what came since is added: new pages, where no page is forked any
    more. One thread calls it.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, int, int]] = {}

    def __call__(self, pids: Set[int]) -> int:
        now = monotonic()
        fresh = {pid: known for pid in pids if (known := self._known.get(pid)) and now - known[0] < FORKED_AGE_S}
        for pid in pids - fresh.keys():
            then = private_bytes(pid)
            # The system may keep the rest to itself.
            fresh[pid] = now, anonymous_bytes(pid) or then, then
        self._known = fresh
        return sum(max(0, own + private_bytes(pid) - then) for pid, (_, own, then) in self._known.items())


_forked_bytes = ForkedBytes()


def worker_bytes(pid: int) -> int:
    """Its share of anonymous memory."""
    return _anonymous_bytes(pid) if Path(f"/proc/{pid}").exists() else 0


def recent(measure: Callable[..., int]) -> Callable[..., int]:
    """Measure the same thing again after MAX_AGE_S only."""
    known: dict[Any, tuple[int, float]] = {}

    def measured(*what: Any) -> int:
        now = monotonic()
        if what not in known or now - known[what][1] > MAX_AGE_S:
            for old in [each for each, (_, taken) in known.items() if now - taken > MAX_AGE_S]:
                del known[old]
            known[what] = measure(*what), now
        return known[what][0]

    return measured


@recent
def _anonymous_bytes(pid: int) -> int:
    return anonymous_bytes(pid)


@recent
def _others(triton_pid: int, workers: frozenset[int]) -> int:
    """Memory of tritonserver and its stages."""
    found = set(processes(triton_pid)) - workers
    stubs = found & {stub for stub in map(stood_for, found) if stub}
    return sum(map(private_bytes, found - stubs)) + _forked_bytes(stubs)


def _gpu(device: str, limit: int) -> Memory:
    """CUDA numbers the GPUs that CUDA_VISIBLE_DEVICES shows it, NVML all."""
    import pynvml

    name = visible_gpus()[int(device.removeprefix("cuda:"))]
    pynvml.nvmlInit()
    by_index, by_uuid = pynvml.nvmlDeviceGetHandleByIndex, pynvml.nvmlDeviceGetHandleByUUID
    info = pynvml.nvmlDeviceGetMemoryInfo(by_index(int(name)) if name.isdecimal() else by_uuid(name))
    return Memory(int(info.used), min(limit or int(info.total), int(info.total)), f"GPU {name}")


def _container() -> Memory | None:
    known = container_memory()
    return None if known is None else Memory(*known, "container")


def _machine() -> Memory:
    memory = psutil.virtual_memory()
    return Memory(memory.total - memory.available, memory.total, "machine")
