"""The controller's round: heal, end drained workers, grant memory, relieve pressure, evict idle models."""

import fcntl
import logging
import os
from collections import Counter
from collections.abc import Mapping, Set
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from sie_triton.controller.changes import Changes
from sie_triton.controller.healing import Healing
from sie_triton.controller.limits import ControllerLimits
from sie_triton.controller.lora_adapters import ServedLoras
from sie_triton.controller.memory import DeviceMemory, Meter
from sie_triton.controller.memory_grants import MemoryGrants
from sie_triton.controller.model_control import ModelControl, TritonWatchdog
from sie_triton.controller.model_states import (
    ModelState,
    Stages,
    inference_records,
    living,
    models_of,
    read_stages,
    taken_bytes,
)
from sie_triton.controller.news import News
from sie_triton.controller.swaps import Swaps, is_eviction
from sie_triton.controller.traffic import TrafficBook
from sie_triton.errors import LoadError, ServerError
from sie_triton.records.grants import CONTROLLER_LOCK, EVICTED, answer_load
from sie_triton.records.limits import RecordLimits
from sie_triton.records.status import LOADING, RESIDENT, Record, read_failure, ring
from sie_triton.settings import Settings
from sie_triton.system.native.loading import kernels_in_use
from sie_triton.system.processes.fork_server import fork_server_ids, importing_ids
from sie_triton.system.processes.pids import ProcessId, is_alive

log = logging.getLogger(__name__)


class Controller:
    """The manager of the models of one tritonserver.

    Holds its `limits`, what the latest round saw (`models`, `memories` by device), the `machine` as the status names
    it, the swaps under way, and a pool of threads that load. One thread calls `is_due`, and `tick` for each round; any
    thread may call the other methods. Futures of `load`, `evict` and `unload` raise LoadError, OutOfService, or
    tritonclient's InferenceServerException, which `knows` raises itself.
    """

    def __init__(
        self, settings: Settings, control: ModelControl, limits: ControllerLimits = ControllerLimits()
    ) -> None:
        self._settings, self.limits = settings, limits
        self.machine = {
            "device": settings.runtime.device,
            "gpu_type": settings.gpu_type,
            "bundle": settings.bundle,
            "kernels": kernels_in_use(settings.runtime.device),
            "speedups": settings.speedups,
        }
        self._control = control
        self._directory = settings.status_dir
        self._meters = {device: Meter(device, settings.memory_limit_bytes, limits) for device in settings.devices}
        self._loads = ThreadPoolExecutor(limits.max_loads, "load")
        self.swaps = Swaps(control, self._steps_of, limits)
        self.changes = Changes(settings.data_dir, control, self.swaps, limits)
        self.loras = ServedLoras(settings.loras_dir, self._directory, self.changes)
        self.traffic = TrafficBook(self._directory, limits)
        self._healing = Healing(self._directory, self.swaps, limits)
        self._watch = TritonWatchdog(control, limits)
        self.models: Mapping[str, ModelState] = {}
        unknown = DeviceMemory(0, 1, "nothing measured yet")
        self.memories: Mapping[str, DeviceMemory] = dict.fromkeys(self._meters, unknown)
        self._triton = 0
        self._settled_at = 0.0
        self._news = News(self._directory)
        self._round_at = -limits.rest_s
        self._is_restless = True

    def is_due(self) -> bool:
        """Return True once a round has something to do, and False after `look_s` seconds in which none had.

        A process that asks for memory, one that starts, and the end of one are noticed at once.
        """
        return (
            self._is_restless
            or self.changes.begin_due()
            or self._news.has_changed()
            or self._news.wait(self.limits.look_s)
            or monotonic() - self._round_at > self.limits.rest_s
        )

    def tick(self) -> None:
        self.swaps.look()
        stages = read_stages(self._directory)
        self._round_at, self._is_restless = monotonic(), True  # should the round fail
        self.models = models_of(stages, self.changes.serving)
        self._look_for_triton()
        leaving = self.changes.leaving(stages)
        self._healing.heal(stages, self.models, leaving)
        fork_servers = [*fork_server_ids(self._directory), *fork_server_ids(self._settings.stub_dir)]
        self._healing.end_stopped(stages, fork_servers)
        self.memories = self._measured({process.pid for process in fork_servers})
        if monotonic() >= self._settled_at:
            self._share_out(stages)
        self.swaps.end_unneeded(stages, leaving)
        self.changes.tick(stages)
        self._healing.remove_orphans(self._triton)
        self.traffic.look(self.models, monotonic())
        self._news.follow(living(stages))
        self._is_restless = not self._healing.is_over or any(model.is_unsettled for model in self.models.values())

    def _share_out(self, stages: Stages) -> None:
        room = MemoryGrants(self._settings, self.swaps, self.models, self.memories, stages, self.limits)
        room.grant()
        room.grant_copies()
        room.relieve()
        room.evict_idle()
        room.recycle()
        if room.ended_bytes:
            self._settled_at = monotonic() + self.limits.settle_s

    def evict(self, model: str, reason: str) -> Future[None]:
        """Free a model's memory. A process that loads it stops once a new process takes the requests."""
        found = self.models.get(model)
        loading = [record for record in found.living if record["state"] == LOADING] if found else []

        def end_loading(swap: Future[None]) -> None:
            if not swap.cancelled() and swap.exception() is None:
                for record in loading:
                    answer_load(self._directory, record, EVICTED)

        swap = self.swaps.evict(model, reason)
        swap.add_done_callback(end_loading)
        return swap

    def load(self, model: str) -> Future[None]:
        """Load a model; the future is done when its weights are in memory, or raises LoadError."""
        return self._loads.submit(self._load, model)

    def unload(self, model: str) -> Future[None]:
        """Take `model` out of service."""
        return self._loads.submit(self._control.unload_all_of, model)

    def knows(self, model: str) -> bool:
        """True if `model` is served, or could be."""
        return model in self.models or self._control.knows(model)

    def traffic_of(self, model: str) -> dict[str, int | float | None]:
        """Return the totals of a model's requests, loads and evictions."""
        evictions = sum(
            count for (name, reason), count in self.swaps.counts.copy().items() if name == model and is_eviction(reason)
        )
        return {**self.traffic.summary(model), "evictions": evictions}

    def device_of(self, record: Record) -> str | None:
        """Return the device that a model or copy is in memory of, or is loaded to; None if it is on none."""
        number = record["device"]
        return [*self.memories][number] if record["worker_pid"] and number < len(self.memories) else None

    def failure_message(self, model: ModelState) -> str:
        """Reason why `model` could not be loaded, as text; empty if nothing failed or no message was written."""
        if model.failed is None:
            return ""
        stage, record = model.failed
        return read_failure(self._directory, model.steps, stage, record["pid"])

    def trouble(self) -> str:
        """Return why models cannot be served now; empty if they can."""
        return "" if self._control.answers() else "tritonserver does not answer; the launcher restarts it if it ended"

    def close(self) -> None:
        self._loads.shutdown(wait=False, cancel_futures=True)
        self.changes.close()
        self.swaps.close()
        self._watch.close()
        ring(self._directory)  # ends a wait for news

    def _load(self, name: str) -> None:
        before = self._latest(name)
        if before is None:
            self._control.load_all_of(name)
        elif before.is_resident:
            return
        elif before.preprocess and before.preprocess["load_failure"]:
            self.swaps.swap(name, "preprocess", "load").result()
        if before is None or before.state != "loading":
            self.swaps.swap(name, "inference", "load", resident=True).result()
        self._wait_until_loaded(name)

    def _wait_until_loaded(self, name: str) -> None:
        generation, seconds = None, self._settings.load_timeout_s + RecordLimits.grant_patience_s
        ended = monotonic() + seconds
        while latest := self._latest(name):
            generation = generation or (latest.steps, latest.record["generation"])
            if latest.is_resident or (latest.steps, latest.record["generation"]) != generation:
                return
            if latest.failure:
                raise LoadError("could not be loaded; Triton's log has the details", latest.failure)
            if latest.record["fetching_ns"]:  # a download has no time limit here
                ended = monotonic() + seconds
            if monotonic() > ended:
                raise LoadError(f"not in memory after {seconds:g} s")
            sleep(self.limits.round_s)

    def _latest(self, name: str) -> ModelState | None:
        return models_of(read_stages(self._directory), self.changes.serving).get(name)

    def _steps_of(self, model: str) -> str:
        """Return the prefix of the names of a model's steps; a model may be newer than the latest round."""
        return self.models[model].steps if model in self.models else self.changes.serving.get(model) or model

    def _measured(self, fork_servers: Set[int]) -> dict[str, DeviceMemory]:
        records = [record for _, record in inference_records(self.models) if record["worker_pid"]]
        workers = {r["worker_pid"]: r["resident_since_ns"] if r["state"] == RESIDENT else 0 for r in records}
        importing = {process.pid for process in importing_ids(self._directory)}
        on_gpus = Counter[int]()
        for record in records:
            on_gpus[record["device"]] += taken_bytes(record) if record["device_bytes"] else 0
        return {
            device: meter.measure(self._triton, workers, fork_servers, importing, on_gpus[number])
            for number, (device, meter) in enumerate(self._meters.items())
        }

    def _look_for_triton(self) -> None:
        """Find the tritonserver of the stages; a new one knows nothing of requests to the one before it."""
        servers = (record["triton_pid"] for _, record in inference_records(self.models))
        triton = next(filter(is_alive, servers), 0)
        if triton in (0, self._triton):
            return
        if self._triton:
            log.info("a new tritonserver is running, process %d", triton)
            self.swaps.forget()
            self._healing.start_anew()
            self.changes.start_anew()
        self._triton, self._watch.triton = triton, ProcessId.of(triton)


def lock(directory: Path) -> IO[str]:
    """Lock `directory` for the life of this controller, and write its pid; raise ServerError if another holds it."""
    directory.mkdir(parents=True, exist_ok=True)
    handle = (directory / CONTROLLER_LOCK).open("a+")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        raise ServerError(f"another controller uses {directory}; stop it first") from exc
    handle.truncate(0)
    handle.write(str(os.getpid()))
    handle.flush()
    return handle
