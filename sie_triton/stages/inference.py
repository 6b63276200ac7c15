"""queue → inference → postprocess: plan, forward, answer; cold, bulk and failing work beside it.

A little work on an idle device is answered from `execute`, the shortest way. More than that is deferred
and waits for the scheduler's lanes, so that the next batch is read while this one runs, and nobody's
deadline passes unseen in Triton's queue. A request of more than one sub-batch is bulk and gives way to
the others.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from threading import Lock
from time import monotonic_ns

import numpy as np
from platformdirs import user_cache_path

from sie_triton.adapters import Adapter, load_adapter
from sie_triton.batching import COST_FUNCTIONS, balanced, plan
from sie_triton.contract import STAMPS
from sie_triton.errors import Cancelled, OutOfMemory, SIEError
from sie_triton.measurements import Measurements
from sie_triton.spec import ModelSpec
from sie_triton.stages.budget import CpuBudget
from sie_triton.stages.calibration import calibrate
from sie_triton.stages.job import Job, Rows, SubBatch, pack
from sie_triton.stages.memory import free_unused_memory, is_out_of_memory
from sie_triton.stages.open_requests import NEVER, deadline_ns, expired
from sie_triton.stages.request import DEFERRED, Answer, Outputs, Request, vector
from sie_triton.stages.scheduler import Scheduler, cost
from sie_triton.stages.stage import ColdStage, internal_error
from sie_triton.stages.status import FAILED, LOADING, RESIDENT, StatusWriter
from sie_triton.stages.timing import BusyLog, covered_ns
from sie_triton.weights import locate

log = logging.getLogger(__name__)

# A sub-batch that does not fit in memory is cut in two, and again, this many times.
HALVINGS = 4

# This part of what runs at once is little enough for `execute` to wait for.
LITTLE = 1 / 4

NO_MEMORY = "the device has no memory for an item of {} tokens; retry later, or send shorter items"


class Inference(ColdStage[Adapter]):
    name = "inference"

    def __init__(self, spec: ModelSpec, device: str, status: StatusWriter) -> None:
        self._spec = spec
        self._device_name = device
        self._cost = COST_FUNCTIONS[spec.batch_cost]
        self._scheduler = Scheduler(device, self._run, 1, CpuBudget(spec.runtime.cpu_threads, status.of_other_models))
        self._set_budget(spec.admission_cost)
        self._replies = ThreadPoolExecutor(1, "reply")
        self._busy = BusyLog()
        self._books = Lock()
        super().__init__(status, spec.runtime.max_concurrent_requests)

    def deadline_ns(self, request: Request) -> int:
        if not request.timeout_us:
            return NEVER
        try:
            arrived = int(vector(request, STAMPS.name, np.int64)[0])
        except (SIEError, IndexError):  # answered as soon as the request is read
            return NEVER
        return deadline_ns(arrived, request.timeout_us)

    def load(self) -> Adapter:
        started = monotonic_ns()
        self.status.record["state"] = LOADING
        try:
            directory = locate(self._spec.weights, allow_hub=self._spec.runtime.allow_hub)
            measurements = self._measurements(directory)
            adapter = load_adapter(self._spec, directory, self._device_name, measurements)
            if not self._spec.runtime.max_sub_batch_cost:
                self._calibrate(adapter, measurements)
        except BaseException:
            self.status.record["state"] = FAILED
            raise
        self.status.record["weights_bytes"] = adapter.weights_bytes
        self.status.record["state"] = RESIDENT
        self._busy.add(started, monotonic_ns())
        return adapter

    def _measurements(self, directory: Path) -> Measurements:
        runtime = self._spec.runtime
        cache = Path(runtime.cache_dir) if runtime.cache_dir else user_cache_path("sie-triton") / "measurements"
        settings = [self._device_name, runtime.precision, runtime.attention, str(self._spec.max_sequence_length)]
        return Measurements.of(cache, self._spec.model, directory, settings, redo=runtime.recalibrate)

    def _calibrate(self, adapter: Adapter, measurements: Measurements) -> None:
        """Measured with the threads of one lane; in tokens, since that is what a forward pass computes."""
        lanes = self._scheduler.num_lanes
        self._scheduler.use_lane_threads()
        tokens = calibrate(adapter, self._spec.max_sequence_length, self._spec.max_batch_cost // lanes, measurements)
        self._set_budget(min(tokens * lanes, self._spec.max_batch_cost))

    def answer(self, loaded: Adapter, requests: Sequence[Request]) -> list[Answer]:
        read = [self._read(loaded, request) for request in requests]
        jobs = [job for job in read if isinstance(job, Job)]
        small = self._sub_batches([job for job in jobs if not job.is_bulk])
        little = len(small) == 1 and sum(map(cost, small[0])) <= LITTLE * self._budget
        with self._scheduler.whole() if little else nullcontext(False) as alone:
            if alone:
                self._run(small.pop())
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

    def _read(self, adapter: Adapter, request: Request) -> Job | SIEError:
        try:
            job = Job.read(request, self._spec.max_sequence_length, adapter.vocab_size)
        except SIEError as exc:
            return exc
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

    def _run(self, sub_batch: SubBatch) -> None:
        """Run one sub-batch; a failure spoils the requests that have items in it, no others."""
        bulk = sub_batch[0][0]
        if bulk.is_bulk and self.open.is_cancelled(bulk.request):
            self._cancel(bulk)
        slots = [(job, item) for job, item in sub_batch if job.error is None]
        if slots:
            self._attempt(slots, HALVINGS)

    def _cancel(self, job: Job) -> None:
        job.error = Cancelled("cancelled by the client")
        if self.open.reply(job.request, job.error):
            self.status.add(num_cancelled=1)

    def _attempt(self, slots: SubBatch, halvings: int) -> None:
        """Run `slots` together, or in halves where memory is short."""
        started = self.status.work_started()
        result = self._forward(slots)
        short = isinstance(result, OutOfMemory) and len(slots) > 1 and halvings > 0
        with self._books:
            ended = self.status.work_ended(started)
            self._busy.add(started, ended)
            done = [] if short else [job for job in settle(slots, result, (started, ended)) if job.is_deferred]
        if short:
            middle = len(slots) // 2
            self._attempt(slots[:middle], halvings - 1)
            self._attempt(slots[middle:], halvings - 1)
            return
        self._count(slots)
        for job in done:
            self._replies.submit(self._reply, job)

    def _forward(self, slots: SubBatch) -> Rows | SIEError:
        assert self._loaded is not None
        try:
            return self._loaded.forward(pack(slots))
        except Exception as exc:
            if not is_out_of_memory(exc):
                return internal_error(self.name, exc)
            log.warning("out of memory with %d items, %d tokens at once", len(slots), sum(_tokens(slots)))
        # Outside the handler: the exception holds on to the tensors of the failed pass.
        free_unused_memory()
        return OutOfMemory(NO_MEMORY.format(max(_tokens(slots))))

    def _count(self, slots: SubBatch) -> None:
        total = sum(map(cost, slots))
        self.status.add(num_sub_batches=1, num_items=len(slots), total_cost=total)
        if len(slots) > 1:
            self.status.raise_to(max_sub_batch_cost=total)

    def _reply(self, job: Job) -> None:
        if job.request in self.open:
            try:
                answer = job.error or self._outputs(job)
            except Exception as exc:
                answer = internal_error(self.name, exc)
            self.open.reply(job.request, answer)

    def _answer_of(self, job: Job) -> Answer:
        return DEFERRED if job.is_deferred else job.error or self._outputs(job)

    def _outputs(self, job: Job) -> Outputs:
        arrived, preprocessed, _ = job.stamps.tolist()
        inference = covered_ns(job.ran)
        waited = max(end for _, end in job.ran) - preprocessed - inference
        with self._books:
            batch_wait = self._busy.idle_ns(preprocessed, min(start for start, _ in job.ran))
        stamps = [arrived, preprocessed, max(0, waited - batch_wait), batch_wait, inference]
        return {**job.outputs, STAMPS.name: np.array(stamps, np.int64)}


def _tokens(slots: SubBatch) -> list[int]:
    return [int(job.lengths[item]) for job, item in slots]


def settle(slots: SubBatch, result: Rows | SIEError, ran: tuple[int, int]) -> list[Job]:
    """Hand each row back to its job, or the error to all of them; the jobs that are done by this."""
    jobs = {id(job): job for job, _ in slots if not job.is_done}
    for row, (job, item) in enumerate(slots):
        if isinstance(result, SIEError):
            job.error = job.error or result
        else:
            job.put(item, {name: values[row] for name, values in result.items()})
    for job in jobs.values():
        job.ran.append(ran)
    return [job for job in jobs.values() if job.is_done]
