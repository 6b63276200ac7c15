"""queue → inference → postprocess: plan, forward, answer; cold, bulk and failing work beside it.

A little work on an idle device is answered from `execute`, the shortest way. More than that is deferred
and waits for the scheduler's lanes, so that the next batch is read while this one runs, and nobody's
deadline passes unseen in Triton's queue. A request of more than one sub-batch is bulk and gives way to
the others.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from threading import Lock
from time import monotonic_ns

import numpy as np

from sie_triton.contract import STAMPS
from sie_triton.errors import Cancelled, ModelError, OutOfMemory, SIEError
from sie_triton.families.base import Rows
from sie_triton.parameters import model_parameters
from sie_triton.records.grants import room
from sie_triton.records.status import StatusWriter
from sie_triton.scheduling import COST_FUNCTIONS, balanced, plan
from sie_triton.scheduling.cpu_budget import CpuBudget
from sie_triton.scheduling.scheduler import Scheduler, cost
from sie_triton.spec import ModelSpec
from sie_triton.stages.job import Job, SubBatch, pack, settle
from sie_triton.stages.loader import Loader
from sie_triton.stages.open_requests import NEVER, deadline_ns, expired
from sie_triton.stages.request import DEFERRED, Answer, Outputs, Request, vector
from sie_triton.stages.seal import Seal
from sie_triton.stages.stage import ColdStage, internal_error
from sie_triton.stages.timing import BusyLog, covered_ns
from sie_triton.worker.process import Worker, WorkerDied, expected_bytes

log = logging.getLogger(__name__)

# A sub-batch that does not fit in memory is cut in two, and again, this many times.
HALVINGS = 4

# This part of what runs at once is little enough for `execute` to wait for.
LITTLE = 1 / 4

NO_MEMORY = "the device has no memory for an item of {} tokens; retry later, or send shorter items"


class Inference(ColdStage[Worker]):
    name = "inference"

    def __init__(self, spec: ModelSpec, device: str, status: StatusWriter) -> None:
        self._spec = spec
        self._parameters = {task: model_parameters(spec, task) for task in spec.tasks}
        self._seal = Seal(status.directory, is_open=spec.runtime.open_steps)
        self._cost = COST_FUNCTIONS[spec.batch_cost]
        cpu = CpuBudget(spec.runtime.cpu_threads, status.of_other_models)
        self._scheduler = Scheduler(device, self._run, 1, cpu, self.fault)
        self._set_budget(spec.admission_cost)
        self._replies = ThreadPoolExecutor(1, "reply")
        self._busy = BusyLog()
        self._books = Lock()
        self._replacing = Lock()
        self._ask_for_room = True
        super().__init__(status, spec.runtime.max_concurrent_requests)
        self._loader = Loader(spec, device, status, self.closing, self._died)

    def deadline_ns(self, request: Request) -> int:
        if not request.timeout_us:
            return NEVER
        try:
            arrived = int(vector(request, STAMPS.name, np.int64)[0])
        except (SIEError, IndexError):  # answered as soon as the request is read
            return NEVER
        return deadline_ns(arrived, request.timeout_us)

    def warm_up(self) -> None:
        """At start-up: Triton waits for it, so it must not wait for room."""
        self._ask_for_room = False
        super().warm_up()
        self._ask_for_room = True

    def load(self) -> Worker:
        started = monotonic_ns()
        self.status.has_worker(None)
        for field in ("weights_bytes", "device_bytes"):
            self.status.record[field] = 0
        order = self._loader.order(self._scheduler.num_lanes, self._scheduler.threads(1))
        asking = self._ask_for_room
        with room(self.status, expected_bytes(order), self.closing) if asking else nullcontext(bool) as check:
            worker = self._loader.start(order, check)
        if worker.loaded.sub_batch_cost:
            at_once = worker.loaded.sub_batch_cost * self._scheduler.num_lanes
            self._set_budget(min(at_once, self._spec.max_batch_cost))
        for phase, seconds in worker.loaded.seconds.items():
            self.status.record[f"{phase}_ns"] = int(seconds * 1e9)
        self.status.record["weights_bytes"] = worker.loaded.weights_bytes
        self.status.record["device_bytes"] = worker.loaded.device_bytes
        self._busy.add(started, monotonic_ns())
        return worker

    def _died(self, worker: Worker) -> None:
        if self.status.has_successor():
            # The controller ended it, to free the memory before Triton ends this process. What may still come loads.
            with self._replacing:
                if self._loaded is worker:
                    self._loaded = None
                    self.status.has_worker(None)
                    worker.close()
            return
        with suppress(SIEError):  # the next request asks for another
            self._replace(worker)

    def _replace(self, dead: Worker) -> Worker:
        """The worker that takes the place of `dead`; LoadError where none can be started."""
        with self._replacing:
            if self._loaded is dead:
                log.error("the process that computes ended; another takes its place")
                self.status.add(num_replaced=1)
                dead.close()
                try:
                    self._loaded = self._load()
                except SIEError:
                    self._loaded = None
                    raise
            if self._loaded is None:
                raise self.failure()
            return self._loaded

    def answer(self, loaded: Worker, requests: Sequence[Request]) -> list[Answer]:
        read = [self._read(loaded, request) for request in requests]
        jobs = [job for job in read if isinstance(job, Job)]
        small = self._sub_batches([job for job in jobs if not job.is_bulk])
        little = len(small) == 1 and sum(map(cost, small[0])) <= LITTLE * self._budget and loaded.is_alive
        with self._scheduler.whole() if little else nullcontext(0) as threads:
            if threads:
                self._run(small.pop(), threads)
        later = [job for job in jobs if not job.is_done]
        for job in later:
            job.is_deferred = True
            self.open.add(job.request, job.deadline_ns)
        for job in later:
            if job.is_bulk:
                self._scheduler.submit_bulk(self._sub_batches([job]))
        self._scheduler.submit([slot for sub_batch in small for slot in sub_batch])
        return [self._answer_of(job) if isinstance(job, Job) else job for job in read]

    def close(self) -> None:
        super().close()
        self._scheduler.close()
        self._replies.shutdown()
        with self._replacing:
            if self._loaded is not None:
                self._loaded.close()

    def _read(self, worker: Worker, request: Request) -> Job | SIEError:
        try:
            job = Job.read(request, self._spec, self._parameters, worker.loaded.vocab_size, self._seal)
        except SIEError as exc:
            return exc
        except Exception as exc:
            return internal_error(self.name, exc)
        self.status.raise_to(highest_ticket=job.ticket)
        job.costs = self._cost(job.lengths).tolist()
        job.is_bulk = job.num_items > 1 and sum(job.costs) > self._budget
        if job.is_over(monotonic_ns()):
            self.status.add(num_expired=1)
            return expired()
        return job

    def _sub_batches(self, jobs: Sequence[Job]) -> list[SubBatch]:
        slots = [(job, item) for job in jobs for item in range(job.num_items)]
        costs = list(map(cost, slots))
        budget = balanced(costs, self._scheduler.budget, self._scheduler.num_lanes)
        return [[slots[i] for i in batch] for batch in plan(costs, budget)]

    def _set_budget(self, cost: int) -> None:
        """`cost` is what runs at once, over all lanes."""
        self._budget = cost
        self._scheduler.budget = max(1, cost // self._scheduler.num_lanes)

    def _run(self, sub_batch: SubBatch, threads: int) -> None:
        """Run one sub-batch; a failure spoils the requests that have items in it, no others. Never raises."""
        try:
            self._compute(sub_batch, threads)
        except BaseException as exc:
            self._spoil(sub_batch, exc)

    def _compute(self, sub_batch: SubBatch, threads: int) -> None:
        bulk = sub_batch[0][0]
        if bulk.is_bulk and self.open.is_cancelled(bulk.request):
            self._cancel(bulk)
        slots = [(job, item) for job, item in sub_batch if job.error is None]
        if slots:
            self._attempt(slots, threads, HALVINGS)

    def _spoil(self, sub_batch: SubBatch, error: BaseException) -> None:
        """Answer for what went wrong outside the forward pass."""
        self.fault()
        told = internal_error(self.name, error)
        for job, _ in sub_batch:
            job.error = job.error or told
            self.open.reply(job.request, job.error)

    def _cancel(self, job: Job) -> None:
        job.error = Cancelled("cancelled by the client")
        if self.open.reply(job.request, job.error):
            self.status.add(num_cancelled=1)

    def _attempt(self, slots: SubBatch, threads: int, halvings: int) -> None:
        """Run `slots` together, or in halves where memory is short."""
        started = self.status.work_started()
        try:
            result = self._forward(slots, threads)
        finally:
            ended = self.status.work_ended(started)
        short = isinstance(result, OutOfMemory) and len(slots) > 1 and halvings > 0
        with self._books:
            self._busy.add(started, ended)
            done = [] if short else settle(slots, result, (started, ended))
        if short:
            middle = len(slots) // 2
            self._attempt(slots[:middle], threads, halvings - 1)
            self._attempt(slots[middle:], threads, halvings - 1)
            return
        self._count(slots)
        for job in done:
            self._score(job)
            if job.is_deferred:
                self._replies.submit(self._reply, job)

    def _score(self, job: Job) -> None:
        """Here and not where replies are sent: it takes its time, and replies of others would wait."""
        try:
            job.score()
        except Exception as exc:
            job.error = internal_error(self.name, exc)

    def _forward(self, slots: SubBatch, threads: int) -> Rows | SIEError:
        """A pass whose process dies is repeated once: most likely the fault was not in what it computed."""
        worker = self._loaded
        for _ in range(2):
            try:
                if worker is None:
                    raise self.failure()
                return worker.forward(pack(slots), threads)
            except WorkerDied:
                assert worker is not None
                try:
                    worker = self._replace(worker)
                except SIEError as exc:
                    return exc
            except MemoryError:
                log.warning("out of memory with %d items, %d tokens at once", len(slots), sum(_tokens(slots)))
                return OutOfMemory(NO_MEMORY.format(max(_tokens(slots))))
            except SIEError as exc:
                return exc
            except Exception as exc:
                return internal_error(self.name, exc)
        return ModelError("inference: the process that computes ended twice with this request in it")

    def _count(self, slots: SubBatch) -> None:
        total = sum(map(cost, slots))
        self.status.add(num_sub_batches=1, num_items=len(slots), total_cost=total)
        if len(slots) > 1:
            self.status.raise_to(max_sub_batch_cost=total)

    def _reply(self, job: Job) -> None:
        if job.request in self.open:
            self.open.reply(job.request, self._result(job))

    def _answer_of(self, job: Job) -> Answer:
        return DEFERRED if job.is_deferred else self._result(job)

    def _result(self, job: Job) -> Outputs | SIEError:
        try:
            return job.error or self._outputs(job)
        except Exception as exc:
            return internal_error(self.name, exc)

    def _outputs(self, job: Job) -> Outputs:
        arrived, preprocessed, *_ = job.stamps.tolist()
        inference = covered_ns(job.ran)
        waited = max(end for _, end in job.ran) - preprocessed - inference
        with self._books:
            batch_wait = self._busy.idle_ns(preprocessed, min(start for start, _ in job.ran))
        stamps = [arrived, preprocessed, max(0, waited - batch_wait), batch_wait, inference]
        outputs = job.outputs(self._spec.forward_types)
        # Postprocess gets the lengths from preprocess.
        sealed = self._seal.stamps(stamps, [*outputs.values(), job.text_lengths])
        return {**outputs, STAMPS.name: sealed}


def _tokens(slots: SubBatch) -> list[int]:
    return [int(job.lengths[item]) for job, item in slots]
