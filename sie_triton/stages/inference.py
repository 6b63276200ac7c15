"""queue → inference → postprocess: plan, forward, answer; cold, bulk and failing work beside it.

Small requests are answered from `execute`. A request of more than one sub-batch is bulk: it is
deferred and gives way to small ones between its sub-batches. While the model is cold, requests wait.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from time import monotonic_ns

import numpy as np

from sie_triton.adapters import Adapter, load_adapter
from sie_triton.batching import COST_FUNCTIONS, balanced, plan
from sie_triton.contract import STAMPS
from sie_triton.errors import SIEError
from sie_triton.spec import CPU_SUB_BATCH_COST, ModelSpec
from sie_triton.stages.job import Job, Rows, SubBatch, pack, scatter
from sie_triton.stages.lanes import Lanes
from sie_triton.stages.request import DEFERRED, Answer, Outputs, Request
from sie_triton.stages.stage import ColdStage, internal_error
from sie_triton.stages.status import FAILED, LOADING, RESIDENT, StatusWriter
from sie_triton.stages.timing import BusyLog
from sie_triton.stages.turn import Turn
from sie_triton.weights import locate


class Inference(ColdStage[Adapter]):
    name = "inference"

    def __init__(self, spec: ModelSpec, device: str, status: StatusWriter) -> None:
        self._spec = spec
        self._device = device
        self._status = status
        self._cost = COST_FUNCTIONS[spec.batch_cost]
        self._budget = sub_batch_cost(spec, device)
        self._lanes = Lanes(device)
        self._turn = Turn()
        self._busy = BusyLog()
        super().__init__()

    def load(self) -> Adapter:
        started = monotonic_ns()
        self._status.record["state"] = LOADING
        try:
            directory = locate(self._spec.weights, allow_hub=self._spec.runtime.allow_hub)
            adapter = load_adapter(self._spec, directory, self._device)
        except BaseException:
            self._status.record["state"] = FAILED
            raise
        self._status.record["weights_bytes"] = adapter.weights_bytes
        self._status.record["state"] = RESIDENT
        self._busy.add(started, monotonic_ns())
        return adapter

    def answer(self, loaded: Adapter, requests: Sequence[Request]) -> list[Answer]:
        read = [self._read(loaded, request) for request in requests]
        jobs = [job for job in read if isinstance(job, Job)]
        small = [job for job in jobs if not self._is_bulk(job)]
        bulk = [job for job in jobs if self._is_bulk(job)]
        for job in bulk:
            job.request.defer()
            self.background.submit(self._run_bulk(loaded, job))
        self._status.add(num_requests=len(jobs), num_deferred=len(bulk))
        with self._turn.interactive():
            for wave in self._waves(small):
                self._run(loaded, wave)
        return [self._finish(job, bulk) if isinstance(job, Job) else job for job in read]

    def _read(self, adapter: Adapter, request: Request) -> Job | SIEError:
        try:
            job = Job.read(request, self._spec.max_sequence_length, adapter.vocab_size)
        except SIEError as exc:
            return exc
        job.costs = self._cost(job.lengths).tolist()
        return job

    def _is_bulk(self, job: Job) -> bool:
        return job.num_items > 1 and sum(job.costs) > self._budget

    def _waves(self, jobs: Sequence[Job]) -> Iterator[list[SubBatch]]:
        slots = [(job, item) for job in jobs for item in range(job.num_items)]
        costs = [cost for job in jobs for cost in job.costs]
        budget = balanced(costs, self._budget // self._lanes.count, self._lanes.count)
        return self._lanes.waves([slots[i] for i in batch] for batch in plan(costs, budget))

    def _run_bulk(self, adapter: Adapter, job: Job) -> Iterator[None]:
        for wave in self._waves([job]):
            with self._turn.bulk():
                self._run(adapter, wave)
            if job.error is not None:
                break
            yield
        job.request.reply(job.error or self._outputs(job))

    def _run(self, adapter: Adapter, wave: Sequence[SubBatch]) -> None:
        """Run sub-batches side by side; a failure spoils the requests that have items in it, no others."""
        started = monotonic_ns()
        self._status.record["busy_since_ns"] = started
        results = self._lanes.map(partial(self._forward, adapter), wave)
        for slots, result in zip(wave, results, strict=True):
            scatter(slots, result)
            self._count(slots)
        ended = monotonic_ns()
        for job in {id(job): job for slots in wave for job, _ in slots}.values():
            job.ran(started, ended)
        self._busy.add(started, ended)
        self._status.record["last_used_ns"] = ended
        self._status.record["busy_since_ns"] = 0

    def _forward(self, adapter: Adapter, slots: SubBatch) -> Rows | SIEError:
        try:
            return adapter.forward(pack(slots))
        except Exception as exc:
            return internal_error(self.name, exc)

    def _count(self, slots: SubBatch) -> None:
        cost = sum(job.costs[item] for job, item in slots)
        self._status.add(num_sub_batches=1, num_items=len(slots), total_cost=cost)
        if len(slots) > 1:
            self._status.raise_to(max_sub_batch_cost=cost)

    def _finish(self, job: Job, bulk: Sequence[Job]) -> Answer:
        if job in bulk:
            return DEFERRED
        return job.error or self._outputs(job)

    def _outputs(self, job: Job) -> Outputs:
        arrived, preprocessed = job.stamps.tolist()
        waited = job.last_end_ns - preprocessed - job.inference_ns
        batch_wait = self._busy.idle_ns(preprocessed, job.first_start_ns)
        stamps = [arrived, preprocessed, waited - batch_wait, batch_wait, job.inference_ns]
        return {**job.outputs, STAMPS.name: np.array(stamps, np.int64)}


def sub_batch_cost(spec: ModelSpec, device: str) -> int:
    """The budget of one forward pass on `device`, never above the model's max_batch_cost."""
    chosen = spec.runtime.max_sub_batch_cost or (CPU_SUB_BATCH_COST if device == "cpu" else spec.max_batch_cost)
    return min(chosen, spec.max_batch_cost)
