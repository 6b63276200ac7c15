"""queue → inference → postprocess: plan, forward and answer, with cold starts, bulk requests and failures.

A small amount of work for an idle device is answered from `execute`, the fastest way. So are several requests whose
pass is quick: Triton gathers the next ones meanwhile, and their answers return together. Other work is deferred and
waits for the scheduler's lanes, so that the next batch is read while this one runs, and no deadline passes unnoticed in
Triton's queue. A request that costs more than all lanes take at once is bulk, and gives way to the others.
"""

import logging
import math
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from threading import Lock
from time import monotonic_ns

from sie_triton.contract import Rows
from sie_triton.contract.spec import REMOTE, ModelSpec
from sie_triton.errors import Cancelled, InputError, LoraLoading, OutOfMemory, SIEError
from sie_triton.models.families import family
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.scheduling import balanced, plan
from sie_triton.pipeline.scheduling.cpu_budget import CpuBudget
from sie_triton.pipeline.scheduling.job import SubBatch, again, cost, items_of, pack, settle, total_cost
from sie_triton.pipeline.scheduling.scheduler import Scheduler
from sie_triton.pipeline.stages.cold_stage import ColdStage, told
from sie_triton.pipeline.stages.copies import Copies
from sie_triton.pipeline.stages.inference_job import BusyLog, InferenceCodec, InferenceJob
from sie_triton.pipeline.stages.loader import Loader
from sie_triton.pipeline.stages.lora_cache import LoraCache
from sie_triton.pipeline.stages.message import Seal
from sie_triton.pipeline.stages.open_requests import GONE, OpenRequest, expired
from sie_triton.pipeline.stages.pass_reports import PassReports
from sie_triton.pipeline.stages.request import Origin, Request
from sie_triton.pipeline.worker.expected import expected_bytes
from sie_triton.pipeline.worker.handle import WorkerDied, WorkerHandle
from sie_triton.pipeline.worker.messages import Load, Loaded
from sie_triton.records.grants import Granted, granted_memory
from sie_triton.records.status import StatusWriter

log = logging.getLogger(__name__)

Batched = SubBatch[InferenceJob]


class Inference(ColdStage[WorkerHandle]):
    """Holds the worker, which the first request loads, its copies, the scheduler of all lanes, and every request.

    `ColdStage.execute` receives a batch on Triton's thread and calls `process`; that thread or a lane calls `_run`; a
    separate thread sends replies. The thread that watches a worker replaces the worker when it dies. A request fails
    with InputError, BusyError, Cancelled, ModelError, OutOfMemory or LoadError, and affects no other requests except
    those in its sub-batch.
    """

    name = "inference"

    def __init__(self, spec: ModelSpec, device: str, status: StatusWriter, limits: StageLimits = StageLimits()) -> None:
        self._spec, self._devices = spec, device.split(",")
        self._is_remote = spec.endpoint is not None
        self._is_quick = not (family(spec.family).generates or self._is_remote)
        self._codec = InferenceCodec(spec, Seal(status.directory), limits)
        cpu = CpuBudget(spec.runtime.cpu_threads, status.of_other_models)
        computed_on, self._max_requests = REMOTE if self._is_remote else device, spec.runtime.max_batch_requests
        self._scheduler = Scheduler[InferenceJob](
            computed_on, self._run, 1, cpu, self.fault, self._max_requests, limits.gather_s
        )
        self._set_budget(spec.admission_cost)
        self._on_cpu = computed_on == "cpu"
        self._cost_per_s = self._least_s = 0.0  # of one lane
        self._busy, self._loads = BusyLog(), BusyLog()
        self._books = Lock()
        self._replacing = Lock()
        self._repeating = Lock()  # one at a time: a job at fault ends no worker that repeats another's
        self._ask_for_room = True
        super().__init__(status, spec.runtime.request_limit, limits)
        self._reports = PassReports(spec, status, self._counting, limits.num_traced_passes)
        status.computed_by(spec.engine)
        # Sends deferred answers: each waits for Triton's acknowledgement.
        self._sending = ThreadPoolExecutor(1, "reply")
        self._loader = Loader(spec, device, status, self.closing, self._died, limits)
        limit, is_known = spec.runtime.max_loras_per_model, self._codec.loras.holds
        self._loras = LoraCache(limit, self._loader.fetch_lora, self._submit_late, status, is_known, limits)
        most = 0 if self._is_remote else min(spec.runtime.max_copies, len(self._devices) - 1)
        self._copies = Copies(status, self._devices, most, self._scheduler, self._loader, self._loras, limits.copies)

    def origin(self, request: Request) -> Origin:
        return self._codec.origin(request)

    def process(self, loaded: WorkerHandle, requests: Sequence[OpenRequest]) -> None:
        jobs: list[InferenceJob] = []
        with_lora: list[InferenceJob] = []
        ticket, now = 0, monotonic_ns()
        for request in requests:
            if (job := self._read(loaded, request, now)) is not None:
                (with_lora if job.lora else jobs).append(job)
                ticket = max(ticket, job.context.ticket)
        self.status.raise_to(highest_ticket=ticket)
        if with_lora:
            jobs += self._loras.ready(with_lora)
        if self._is_quick and loaded.is_alive:
            self._run_now([job for job in jobs if not job.is_bulk])
        # The device is busy, or this is too much work for this thread: the lanes run it.
        if later := [job for job in jobs if not job.is_done]:
            for job in later:
                job.defer()
            self._submit(later, self._scheduler.submit)

    def _read(self, worker: WorkerHandle, request: OpenRequest, now_ns: int) -> InferenceJob | None:
        """Read a request; answer it with its error, and return None, if it is invalid or too late."""
        try:
            job = self._codec.read(request, worker.loaded)
            self.check_call(job.context.call)
        except Exception as exc:
            request.answer(told(self.name, exc))
            return None
        is_large = job.num_items > 1 and sum(job.costs) > self._budget_of_lanes
        job.is_bulk = is_large or job.context.is_bulk
        if job.deadline_ns <= now_ns:
            self.status.add(num_expired=1)
            request.answer(expired())
            return None
        return job

    def _run_now(self, jobs: Sequence[InferenceJob]) -> None:
        """Run `jobs` on this thread as one sub-batch, if they are little or quick and the device is free for them."""
        # Behind a full batch others wait in Triton, which must come here to be seen, and given to a copy.
        most = self._max_requests - bool(self._copies.most)
        if 0 < len(jobs) <= most:
            items = sorted(items_of(jobs), key=cost)
            with self._reserved(total_cost(items), len(items), len(jobs)) as threads:
                if threads:
                    self._run(items, threads)

    def _reserved(self, total: int, num_items: int, num_requests: int) -> AbstractContextManager[int]:
        """Reserve the device, or a lane, for a sub-batch that costs `total`.

        Give the CPU threads it may use; 0: it must be deferred.
        """
        lane_s = total / self._cost_per_s if self._cost_per_s else math.inf
        limits = self.limits
        is_quick = num_requests > 1 and lane_s <= min(limits.quick_s, limits.quick_per_request_s * num_requests)
        is_undivided = self._least_s + lane_s <= limits.undivided_s
        if self._on_cpu and (is_quick or is_undivided) and total <= self._budget_of_lanes:
            return self._scheduler.reserve_lane(limits.quick_s)
        if total <= limits.little_ratio * self._budget_of_lanes and (num_items == 1 or not self._on_cpu):
            return self._scheduler.reserve_idle_device()
        return nullcontext(0)

    def _submit_late(self, jobs: Sequence[InferenceJob]) -> None:
        """Submit jobs that have waited for their adapters."""
        self._submit(jobs, self._scheduler.submit_late)

    def _submit(self, jobs: Sequence[InferenceJob], submit_others: Callable[[Batched], None]) -> None:
        """Submit jobs to the lanes: bulk ones cut into sub-batches, the others together."""
        for job in jobs:
            if job.is_bulk:
                budget = balanced(job.costs, self._scheduler.lane_budget, self._scheduler.num_shares)
                self._scheduler.submit_bulk([[(job, item) for item in batch] for batch in plan(job.costs, budget)])
        submit_others(items_of(job for job in jobs if not job.is_bulk))

    def _set_budget(self, cost: int) -> None:
        """Set the cost that may run at once, in all lanes together."""
        self._budget_of_lanes = cost
        self._scheduler.lane_budget = max(1, cost // self._scheduler.num_lanes)

    def _run(self, sub_batch: Batched, threads: int) -> None:
        """Run one sub-batch. A failure affects only the requests that have items in it. Never raises."""
        try:
            for job in {job: None for job, _ in sub_batch}:
                # It was answered, at its deadline for example, or its client has disconnected.
                if job.error is None and job.request.end_if_unwanted(asks_triton=job.is_bulk):
                    job.error = Cancelled(GONE)
            items = [(job, item) for job, item in sub_batch if job.error is None]
            if loras := {job.lora for job, _ in items if job.lora}:
                self._run_with(loras, items, threads)
            elif items:
                self._attempt(items, threads, self.limits.num_halvings)
        except BaseException as exc:
            self.fault()
            answer = told(self.name, exc)
            for job, _ in sub_batch:
                self._fail_job(job, answer)

    def _run_with(self, loras: Collection[str], items: Batched, threads: int) -> None:
        """Run `items`, those of each LoRA adapter side by side. Fail those whose adapter the worker does not hold."""
        with self._loras.running(loras) as held:
            ready = [(job, item) for job, item in items if not job.lora or job.lora in held]
            for job, _ in items:
                if job.lora and job.lora not in held:
                    self._fail_job(job, LoraLoading(f"lora {job.lora_name}: is not in memory any more; retry"))
            if ready:
                by_lora = sorted(ready, key=lambda each: each[0].lora)
                self._attempt(by_lora, threads, self.limits.num_halvings)

    def _fail_job(self, job: InferenceJob, error: SIEError) -> None:
        """Answer a job with `error`, unless it has failed before."""
        job.error = job.error or error
        job.request.answer(job.error)

    def _attempt(self, items: Batched, threads: int, halvings: int) -> None:
        """Run `items` together, or in parts if that fails and parts may succeed."""
        started = self.status.work_started()
        try:
            result = self._forward(items, threads)
        finally:
            ended = self.status.work_ended(started)
        parts = again(items, result, halvings, (InputError, WorkerDied)) if isinstance(result, SIEError) else []
        with self._books:
            self._busy.add(started, ended)
            done = [] if parts else settle(items, result, (started, ended), self._codec.ragged)
        for part in parts:
            self._attempt(part, threads, halvings - 1)
        if not parts:
            self._reports.report(items, (started, ended), threads, self._scheduler.lane_budget)
            self._hand_on(done)

    def _hand_on(self, done: Sequence[InferenceJob]) -> None:
        """Answer jobs whose rows are complete, or that have failed; those that are deferred on the sending thread."""
        now: list[InferenceJob] = []
        later: list[InferenceJob] = []
        for job in done:
            if job.error is None:
                self._codec.collect(job)  # on the sending thread it would delay other replies
            (later if job.request.is_deferred else now).append(job)
        if later:
            self._sending.submit(self._reply, later)
        self._reply(now)

    def _forward(self, items: Batched, threads: int) -> Rows | SIEError:
        try:
            return self._pass(items, threads)
        except MemoryError:
            costs = list(map(cost, items))
            log.warning("out of memory with %d items, a cost of %d at once", len(items), sum(costs))
            problem = f"the device has no memory for an item that costs {max(costs)}"
            return OutOfMemory(f"{problem}; retry later, or send shorter items")
        except Exception as exc:
            return told(self.name, exc)

    def _pass(self, items: Batched, threads: int) -> Rows:
        """Run a forward pass. If its worker dies, repeat it once: most likely the input was not the cause.

        Raise WorkerDied if it held several jobs: any of them may be the cause, so each is retried separately.
        """
        worker = self._loaded
        if worker is None:
            raise self.failure()
        try:
            with self._copies.least_busy(worker) if self._copies.most else nullcontext(worker) as worker:
                return worker.forward(pack(items), threads)
        except WorkerDied:
            if not any(job.request.is_open for job, _ in items):
                raise  # no worker is started for requests that are answered
            if len({id(job) for job, _ in items}) > 1:
                self._replace(worker)
                raise
        with self._repeating:
            worker = self._replace(worker)
            try:
                return worker.forward(pack(items), threads)
            except WorkerDied as exc:
                self._replace(worker)
                raise self._codec.quarantine.add(items[0][0]) from exc

    def _reply(self, jobs: Sequence[InferenceJob]) -> None:
        for job in jobs:
            try:
                with self._books:
                    answer = job.error or self._codec.write(job, self._busy, self._loads)
            except Exception as exc:
                answer = told(self.name, exc)
            job.request.answer(answer)

    def warm_up(self) -> None:
        """Load at start-up without waiting for the controller's permission, because Triton waits for this."""
        self._ask_for_room = False
        super().warm_up()
        self._ask_for_room = True

    def load(self) -> WorkerHandle:
        started = monotonic_ns()
        self.status.has_worker(None)
        for field in ("weights_bytes", "beside_bytes", "pass_bytes", "device_bytes", "graph_tokens"):
            self.status.record[field] = 0
        with self.fetching() as report_progress:
            order = self._loader.order(self._scheduler.num_lanes, self._scheduler.threads(1), report_progress)
        with self._granted(order) as granted:
            worker = self._loader.start(replace(order, device=granted.device), granted.check)
            self._note(worker.loaded)
            self._loras.restore(worker)
        self._copies.start()
        for each in (self._busy, self._loads):
            each.add(started, monotonic_ns())
        return worker

    def _note(self, loaded: Loaded) -> None:
        """Take over the measurements that a worker made while it loaded."""
        if loaded.sub_batch_cost:
            at_once = loaded.sub_batch_cost * self._scheduler.num_lanes
            self._set_budget(min(at_once, self._spec.max_batch_cost))
        self._cost_per_s, self._least_s = loaded.cost_per_s, loaded.least_s
        for phase, seconds in loaded.seconds.items():
            self.status.record[f"{phase}_ns"] = int(seconds * 1e9)
        self.status.record["weights_bytes"] = loaded.weights_bytes
        self.status.record["device_bytes"] = loaded.device_bytes
        self.status.record["beside_bytes"] = loaded.need_bytes - loaded.weights_bytes
        self.status.record["pass_bytes"] = loaded.pass_bytes

    def _granted(self, order: Load) -> AbstractContextManager[Granted]:
        """Reserve memory for the worker of `order`, if that must wait for permission; give the device to load it on."""
        if self._ask_for_room and not self._is_remote:
            return granted_memory(self.status, expected_bytes(order), self.closing, self._devices)
        return nullcontext(Granted(self._devices[0]))

    def _died(self, worker: WorkerHandle) -> None:
        if self._copies.drop(worker):
            return
        # If this process has a successor, the controller ended the worker, to free its memory before Triton ends this
        # process. Late requests load.
        if self.status.has_successor() and self._has_let_go(worker):
            return
        with suppress(SIEError):  # the next request starts another worker
            self._replace(worker)

    def _has_let_go(self, worker: WorkerHandle) -> bool:
        """Do without the dead `worker`. Return False if open requests need another."""
        with self._replacing, self._lock:  # which `execute` takes once it has counted its requests
            if self.status.record["num_open"]:
                return False
            if self._loaded is worker:
                self._loaded = None
                self.status.has_worker(None)
                worker.close()
            return True

    def _replace(self, dead: WorkerHandle) -> WorkerHandle:
        """Return a replacement for the worker `dead`, a copy if there is one. Raise LoadError if none can start."""
        with self._replacing:
            self._copies.drop(dead)
            if self._loaded is dead or (self._loaded is not None and not self._loaded.is_alive):
                log.error("the worker process ended; another replaces it")
                self.status.add(num_replaced=1)
                self._loaded.close()
                try:
                    self._loaded = self._copies.promote() or self._load()
                except SIEError:
                    self._loaded = None
                    raise
            if self._loaded is None:
                raise self.failure()
            return self._loaded

    def close(self) -> None:
        super().close()
        self._loader.close()
        self._copies.stop()
        self._loras.close()
        self._scheduler.close()
        self._reports.close()
        self._sending.shutdown()
        with self._replacing:
            if self._loaded is not None:
                self._loaded.close()
            self._copies.close()
