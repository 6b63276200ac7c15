"""Starts a model's worker, and watches it until it has loaded the weights."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import monotonic_ns, time

from platformdirs import user_data_path

from sie_triton.contract.spec import AUTO, ONNX, ModelSpec
from sie_triton.errors import LoadError, SIEError
from sie_triton.models.environments.venv import Venv, find
from sie_triton.models.families import family
from sie_triton.models.known_loras import CONFIG_FILE, WEIGHTS_FILE
from sie_triton.models.weights import cache_of, loadable, locate, pin_of
from sie_triton.models.weights.local_cache import listing
from sie_triton.models.weights.locate import graph_of
from sie_triton.models.weights.uses import Uses, record_beside
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.stages.tokenizer_files import naming, with_tokenizers
from sie_triton.pipeline.worker.handle import LoaderStopped, WorkerHandle
from sie_triton.pipeline.worker.messages import Load, Quickened
from sie_triton.records.revisions import model_of
from sie_triton.records.status import CopyRecord, StatusWriter
from sie_triton.system.processes.pids import ProcessId
from sie_triton.system.telemetry.spans import spans

log = logging.getLogger(__name__)


class Loader:
    """Starts the worker of one model, and keeps its pid in the status record.

    `device` may name several, with commas: an order is for the first of them.

    The loading thread calls `order` and then `start`: the background thread, Triton's thread at start-up, or the thread
    that has found a worker dead. `died` is called, on a thread of the worker object, when a loaded worker ends. No
    worker starts once `closing` is set. LoadError says why the weights were not loaded. An exception of `check` in
    `start` ends the worker and propagates to the caller.
    """

    def __init__(
        self,
        spec: ModelSpec,
        device: str,
        status: StatusWriter,
        closing: Event,
        died: Callable[[WorkerHandle], None],
        limits: StageLimits = StageLimits(),
    ) -> None:
        self._limits = limits
        self._spec = spec
        self._device = device
        self._status = status
        self._closing = closing
        self._died = died
        self._uses = Uses()
        self._origin = Path()
        # All revisions of the model share one lock, on whichever of its devices they are.
        where = "gpus" if "," in device else device.replace("/", "-")
        self._lock = status.directory / f"{model_of(status.model)}.{where}.weights"

    def order(self, num_lanes: int, threads: int, report_progress: Callable[[str], None] = lambda doing: None) -> Load:
        """Return the load order for a worker with `num_lanes` lanes of `threads` threads each.

        Blocks while the weights are fetched; `report_progress` gets the progress, and may raise to stop. Raise
        LoadError if the weights or the environment are missing.
        """
        spec, environment, kind = self._spec, self._environment(), family(self._spec.family)
        pin = pin_of(self._status.model, self._status.directory)
        cache = cache_of(spec.runtime)
        try:
            self._origin = loadable(
                spec,
                kind.files,
                engines=kind.engines,
                cache=cache,
                pin=pin,
                report_progress=report_progress,
                other_repositories=kind.other_repositories,
                uses=self._uses,
            )
            directory = with_tokenizers(spec, self._origin, self._status.directory, report_progress)
        except BaseException:
            self._uses.release()
            raise
        if graph := graph_of(spec, kind.engines, listing(directory)):
            spec = replace(spec, engine=ONNX, onnx_file=graph)
        self._status.computed_by(spec.engine)
        order = Load(
            spec=spec.to_json(),
            directory=directory,
            device=self._device.partition(",")[0],
            measurements_dir=Path(spec.runtime.measurements_dir or cache / "measurements"),
            # The lock prevents a second copy of the weights. A process that has a successor uses another lock: requests
            # that were sent to it before the traffic moved must not wait for the successor to end.
            lock=self._lock.with_suffix(".late") if self._status.has_successor() else self._lock,
            num_lanes=num_lanes,
            threads=threads,
            environment=environment,
            makes_graphs=spec.runtime.engine == AUTO,
            graphs_dir=cache / "graphs",
        )
        if order.makes_graphs:
            self._uses.hold(record_beside(order.graphs))
        self._order = order
        return order

    def fetch_lora(self, source: str, uses: Uses) -> Path:
        """Return the directory of a LoRA adapter, fetched if needed. Raise LoadError if it is unavailable.

        The files stay on the disk while `uses` holds them.
        """

        def report_progress(doing: str) -> None:
            if self._closing.is_set():
                raise LoadError("this process is about to end")

        return locate(
            source,
            allow_hub=self._spec.runtime.hf_fallback,
            cluster=self._spec.runtime.cluster_cache,
            patterns=(CONFIG_FILE, WEIGHTS_FILE),
            report_progress=report_progress,
            max_bytes=self._limits.lora_bytes,
            uses=uses,
        )

    def _environment(self) -> Venv | None:
        if not self._spec.environment:
            return None
        given = self._spec.runtime.environments_dir
        return find(Path(given) if given else user_data_path("sie-triton") / "environments", self._spec.environment)

    def start(self, order: Load, check: Callable[[], object]) -> WorkerHandle:
        """Start a worker and return it once it has loaded. An exception of `check` ends it early.

        The status record has its pid from the beginning.
        """
        try:
            with naming(self._origin, order.directory):
                return self._started(order, check)
        except SIEError:
            self._status.has_worker(None)
            self._uses.release()
            raise

    def start_copy(
        self, copy: CopyRecord, device: str, check: Callable[[], object], measured: Callable[[int], None]
    ) -> WorkerHandle:
        """Start one more worker by the latest order, on `device`, and return it once it has loaded.

        `copy` has its pid from the beginning; `measured` is called when its GPU memory has changed.
        """
        # One lock for each device: a process before this one may still have its copy there.
        order = replace(self._order, device=device, lock=self._lock.with_suffix(f".{int(copy.record['device'])}"))
        with naming(self._origin, order.directory):
            return self._start(order, check, copy, lambda quickened: None, measured)

    def _started(self, order: Load, check: Callable[[], object]) -> WorkerHandle:
        try:
            return self._start(order, check, self._status, self._quickened, self._measured)
        except LoaderStopped as exc:
            log.error("%s; starting another", exc)
            return self._start(order, check, self._status, self._quickened, self._measured)

    def close(self) -> None:
        """Record when the files were used last. They stay in use until this process ends, and the worker with it."""
        idle_ns = monotonic_ns() - int(self._status.record["last_used_ns"])
        self._uses.last_used(time() - idle_ns / 1e9)

    def _start(
        self,
        order: Load,
        check: Callable[[], object],
        record: StatusWriter | CopyRecord,
        quickened: Callable[[Quickened], None],
        measured: Callable[[int], None],
    ) -> WorkerHandle:
        def loading(worker: ProcessId) -> None:
            record.has_worker(worker)
            check()
            if self._closing.is_set():
                raise LoadError("this process is about to end")

        runtime = self._spec.runtime
        return WorkerHandle(
            order,
            self._died,
            forward_timeout_s=runtime.forward_timeout_s,
            load_timeout_s=runtime.load_timeout_s,
            loading=loading,
            quickened=quickened,
            measured=measured,
        )

    def _quickened(self, quickened: Quickened) -> None:
        self._status.record["graph_tokens"] = quickened.max_tokens
        self._status.add(weights_bytes=quickened.num_bytes)
        if tracing := spans():
            attributes = {"sie.model": self._spec.model, "sie.max_tokens": quickened.max_tokens}
            tracing.event("make graph", quickened.started_ns, quickened.ended_ns, attributes)

    def _measured(self, device_bytes: int) -> None:
        self._status.record["device_bytes"] = device_bytes
