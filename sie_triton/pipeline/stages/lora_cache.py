"""Cache of LoRA adapters in a model's workers: loads on first use, and evicts the least recently used."""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Lock
from time import monotonic, monotonic_ns

from sie_triton.errors import BusyError, LoadError, LoraLoading, SIEError
from sie_triton.models.weights.uses import Uses
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.scheduling.threads import Sweep
from sie_triton.pipeline.stages.inference_job import InferenceJob
from sie_triton.pipeline.worker.handle import WorkerDied, WorkerHandle
from sie_triton.records.lora_states import FAILED, LOADING, RESIDENT, Lora, State, write_loras
from sie_triton.records.status import StatusWriter
from sie_triton.system.telemetry.spans import event


@dataclass(slots=True, eq=False)
class CachedLora:
    """A LoRA adapter and its jobs."""

    name: str
    source: str
    state: State = LOADING
    directory: Path = Path()
    num_bytes: int = 0
    last_used_ns: int = field(default_factory=monotonic_ns)
    failure: LoadError | None = None
    retry_at: float = 0.0
    leaving: bool = False  # no further job is passed to the scheduler
    num_running: int = 0
    waiting: list[InferenceJob] = field(default_factory=list)  # that were not passed to the scheduler
    users: set[InferenceJob] = field(default_factory=set)  # unanswered jobs that were
    uses: Uses = field(default_factory=Uses)  # keeps its files on the disk, for the worker after this one

    def as_record(self) -> Lora:
        return Lora(
            name=self.name,
            state=self.state,
            failure=str(self.failure or ""),
            bytes=self.num_bytes,
            last_used_ns=self.last_used_ns,
        )

    def is_used(self, is_wanted: Callable[[InferenceJob], bool]) -> bool:
        """True if a forward pass runs with it, or a job whose response `is_wanted` uses it. Other jobs are dropped."""
        self.users = set(filter(is_wanted, self.users))
        return bool(self.users or self.num_running)


log = logging.getLogger(__name__)


class LoraCache:
    """The LoRA adapters in one model's worker and in each copy of it, at most `limit`.

    A job whose adapter is missing is deferred and waits; `submit` gets it once the adapter is loaded. An adapter in use
    is never removed. If all are in use, the least recently used one takes no more jobs, and is removed when its jobs
    are done. An adapter whose source `is_known` no longer accepts is removed as soon as it is idle. `fetch` returns the
    directory of a source, and records that its files are in use. The record of adapters beside `status` lists the
    adapters.

    Any thread may call any method. Only threads of this object wait for adapters.
    """

    def __init__(
        self,
        limit: int,
        fetch: Callable[[str, Uses], Path],
        submit: Callable[[Sequence[InferenceJob]], None],
        status: StatusWriter,
        is_known: Callable[[str], bool] = lambda source: True,
        limits: StageLimits = StageLimits(),
    ) -> None:
        self._limit, self._limits = limit, limits
        self._fetch, self._submit, self._status = fetch, submit, status
        self._changed = Condition()
        self._placing, self._writing = Lock(), Lock()
        self._written_at = 0.0
        self._known: dict[str, CachedLora] = {}
        self._worker: WorkerHandle | None = None
        self._copies: list[WorkerHandle] = []
        self._closed, self._is_known = False, is_known
        self._sweep = Sweep("lora-sweep", limits.lora_sweep_s, self.free_removed)
        self._loaders = ThreadPoolExecutor(limits.num_lora_fetches, "lora")

    def ready(self, jobs: Sequence[InferenceJob]) -> list[InferenceJob]:
        """Return the jobs that can run. The others have failed, or are deferred and wait."""
        ready = []
        for job in jobs:
            try:
                if self.take(job):
                    ready.append(job)
                    continue
            except SIEError as exc:
                job.request.answer(exc)
                continue
            job.defer()
            self.wait(job)
        return ready

    def take(self, job: InferenceJob) -> bool:
        """False if `job` must `wait`. LoadError if its adapter has failed recently, LoraLoading if too many wait."""
        with self._changed:
            each = self._known.get(job.lora)
            if each is None:
                return False
            if each.state == FAILED and each.failure is not None and monotonic() < each.retry_at:
                raise each.failure
            if each.state == RESIDENT and not each.leaving:
                each.name = job.lora_name
                self._use(each, [job])
                return True
            if len(each.waiting) >= (most := self._limits.num_waiting_for_lora):
                raise LoraLoading(f"lora {job.lora_name}: is being loaded, and {most} requests wait; retry")
            return False

    def wait(self, job: InferenceJob) -> None:
        """Queue a deferred job for which `take` returned False, and load its adapter if needed."""
        with self._changed:
            each = self._known.get(job.lora)
            is_new = each is None or each.state == FAILED
            if each is None or is_new:
                each = self._known[job.lora] = CachedLora(job.lora_name, job.lora)
            each.name, each.last_used_ns = job.lora_name, monotonic_ns()
            is_here = each.state == RESIDENT and not each.leaving
            if is_here:
                self._use(each, [job])
            else:
                each.waiting.append(job)
            if is_new:
                self._loaders.submit(self._load, each)
        if is_here:
            self._submit([job])

    @contextmanager
    def running(self, loras: Collection[str]) -> Iterator[Collection[str]]:
        """Give those of `loras` that the worker holds and keeps within the context; jobs of others are answered."""
        with self._changed:
            held = [each for each in map(self._known.get, loras) if each is not None and each.state == RESIDENT]
            for each in held:
                each.num_running += 1
        try:
            yield {each.source for each in held}
        finally:
            with self._changed:
                for each in held:
                    each.num_running -= 1
                self._changed.notify_all()

    def equip(self, copy: WorkerHandle, join: Callable[[], None]) -> None:
        """Load the adapters in memory into a copy of the worker, and call `join` before any other is loaded.

        Raise LoadError or WorkerDied if one cannot be loaded, and what `join` raises.
        """
        with self._placing:
            for each in self._resident():
                copy.add_lora(each.source, each.directory)
            self._copies.append(copy)
            join()

    def leave(self, copy: WorkerHandle) -> None:
        """Do without a copy that has ended, or is about to."""
        with self._changed:
            self._copies = [each for each in self._copies if each is not copy]

    def restore(self, worker: WorkerHandle) -> None:
        """Load the adapters of the previous worker into a new one. Those that fail are loaded on their next use.

        A copy that becomes the worker has them.
        """
        with self._changed:
            self._worker = worker
            held = [] if worker in self._copies else self._resident()
            self._copies = [each for each in self._copies if each is not worker]
            self._changed.notify_all()
        for each in held:
            try:
                worker.add_lora(each.source, each.directory)
            except SIEError as exc:
                log.error("lora %s: could not be loaded into the new worker: %s", each.name, exc)
                with self._changed:
                    self._forget(each)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._sweep.close()
        self._loaders.shutdown(wait=True, cancel_futures=True)

    def free_removed(self) -> None:
        """Unload idle adapters that were removed from the model."""
        with self._placing:
            with self._changed:
                idle = [each for each in self._resident() if not each.waiting and not self._is_used(each)]
                removed = [each for each in idle if not self._is_known(each.source)]
                list(map(self._forget, removed))
            for each in removed:
                self._take_out(each, "unloaded, because it was removed from the model")
        if removed:
            self._write_records()

    def _load(self, each: CachedLora) -> None:
        self._write_records()
        try:
            each.directory = self._fetch(each.source, each.uses)
            with self._placing, event("load lora", {"sie.lora": each.name}):
                self._place(each)
        except SIEError as exc:
            self._fail(each, exc)
        except BaseException as exc:
            log.exception("lora %s failed", each.name)
            self._fail(each, LoadError(f"loading failed with {type(exc).__name__}; tritonserver.log has the details"))
        self._write_records()

    def _place(self, each: CachedLora) -> None:
        """Load an adapter into the worker, and submit the jobs that wait for it."""
        self._make_room()
        while True:
            worker = self._worker_now()
            try:
                done = worker.add_lora(each.source, each.directory)
            except WorkerDied:
                self._wait_for_another(worker)
                continue
            for copy in [*self._copies]:
                self._place_in(copy, each)
            with self._changed:
                if self._worker is worker:
                    each.state, each.num_bytes = RESIDENT, done.num_bytes
                    self._status.record["device_bytes"] = done.device_bytes
                    waiting, each.waiting = each.waiting, []
                    self._use(each, waiting)
                    break
        with suppress(BusyError):  # the next load starts it
            self._sweep.start()
        log.info("lora %s: loaded, %d bytes", each.name, done.num_bytes)
        self._submit([job for job in waiting if self._is_wanted(job)])

    def _place_in(self, copy: WorkerHandle, each: CachedLora) -> None:
        """Load an adapter into a copy, which ends if it cannot: a pass must be the same on each."""
        try:
            copy.add_lora(each.source, each.directory)
        except SIEError as exc:
            log.error("lora %s: could not be loaded into a copy, which ends: %s", each.name, exc)
            copy.kill()

    def _make_room(self) -> None:
        """Make room for one more adapter: wait until the least recently used one is idle, and remove it."""
        with self._changed:
            while len(self._resident()) >= self._limit:
                victim = self._victim()
                if self._is_used(victim):
                    victim.leaving = True
                    self._changed.wait(self._limits.lora_poll_s)
                    self._check_open()
                    continue
                self._forget(victim)
                break
            else:
                return
        self._take_out(victim, "unloaded, to make room for another")

    def _take_out(self, each: CachedLora, why: str) -> None:
        log.info("lora %s: %s", each.name, why)
        for worker in (self._worker, *self._copies):
            if worker is not None:
                with suppress(SIEError):
                    worker.remove_lora(each.source)

    def _victim(self) -> CachedLora:
        """Return the adapter to remove: a leaving one if any, idle before used, least recently used first."""
        leaving = [each for each in self._resident() if each.leaving]
        return min(leaving or self._resident(), key=lambda each: (self._is_used(each), each.last_used_ns))

    def _is_used(self, each: CachedLora) -> bool:
        return each.is_used(self._is_wanted)

    def _is_wanted(self, job: InferenceJob) -> bool:
        return job.request.is_open if job.request.is_deferred else not job.is_done

    def _use(self, each: CachedLora, jobs: Sequence[InferenceJob]) -> None:
        each.users.update(jobs)
        each.last_used_ns = monotonic_ns()
        if monotonic() - self._written_at > self._limits.lora_write_s and not self._closed:
            self._written_at = monotonic()
            self._loaders.submit(self._write_records)

    def _resident(self) -> list[CachedLora]:
        return [each for each in self._known.values() if each.state == RESIDENT]

    def _forget(self, each: CachedLora) -> None:
        """Forget an adapter. Load it again for jobs that arrived while it was leaving."""
        if self._known.get(each.source) is each:
            del self._known[each.source]
            each.uses.release()
            if each.waiting:
                again = self._known[each.source] = CachedLora(each.name, each.source, waiting=each.waiting)
                self._loaders.submit(self._load, again)

    def _fail(self, each: CachedLora, error: SIEError) -> None:
        remedy = f"the first request after {self._limits.retry_lora_s:g} s tries again"
        told = error.refusal(remedy, f"the LoRA adapter {each.name}") if isinstance(error, LoadError) else error
        log.error("%s", told)
        with self._changed:
            each.failure = told if isinstance(told, LoadError) else None
            each.state, each.retry_at = FAILED, monotonic() + self._limits.retry_lora_s
            each.uses.release()
            waiting, each.waiting = each.waiting, []
            for old in [old for old in self._known.values() if old.state == FAILED and old.retry_at < monotonic()]:
                self._forget(old)
        for job in waiting:
            job.request.answer(told)

    def _worker_now(self) -> WorkerHandle:
        with self._changed:
            if self._worker is None:
                raise LoadError("the worker process has ended")
            return self._worker

    def _wait_for_another(self, dead: WorkerHandle) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._worker is not dead or self._closed, self._limits.lora_worker_s)
            self._check_open()
            if self._worker is dead:
                raise LoadError("the worker process has ended, and no other has replaced it")

    def _check_open(self) -> None:
        if self._closed:
            raise BusyError("this process is about to end; retry")

    def _write_records(self) -> None:
        """Write the current adapters, and the memory of all weights, to the records."""
        with self._writing:
            with self._changed:
                self._written_at = monotonic()
                if self._worker is not None:
                    held = sum(each.num_bytes for each in self._resident())
                    self._status.record["weights_bytes"] = self._worker.loaded.weights_bytes + held
                found = {each.source: each.as_record() for each in self._known.values()}
            try:
                write_loras(self._status.loras_path, found)
            except OSError as exc:
                log.warning("the record of LoRA adapters cannot be written: %s", exc)
