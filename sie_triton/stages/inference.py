"""queue → inference → postprocess: plan, forward, answer; cold, bulk and failing work beside it.

Small requests are answered from `execute`. A request of more than one sub-batch is bulk: it is
deferred and gives way to small ones between its sub-batches. While the model is cold, requests wait.
"""

from collections.abc import Iterator, Sequence
from time import monotonic_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.adapters import Adapter, load_adapter
from sie_triton.batching import COST_FUNCTIONS, plan
from sie_triton.contract import STAMPS
from sie_triton.errors import SIEError
from sie_triton.spec import ModelSpec
from sie_triton.stages.job import Job, Slot, pack
from sie_triton.stages.request import DEFERRED, Answer, Outputs, Request
from sie_triton.stages.stage import ColdStage, internal_error
from sie_triton.stages.status import FAILED, LOADING, RESIDENT, StatusWriter
from sie_triton.stages.timing import BusyLog
from sie_triton.stages.turn import Turn
from sie_triton.weights import locate

# Larger sub-batches fall out of a CPU's cache: measured in ARCHITECTURE.md.
CPU_SUB_BATCH_COST = 2048


class Inference(ColdStage[Adapter]):
    name = "inference"

    def __init__(self, spec: ModelSpec, device: str, status: StatusWriter) -> None:
        self._spec = spec
        self._device = device
        self._status = status
        self._cost = COST_FUNCTIONS[spec.batch_cost]
        self._budget = sub_batch_cost(spec, device)
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
            for slots in self._sub_batches(small):
                self._forward(loaded, slots)
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

    def _sub_batches(self, jobs: Sequence[Job]) -> list[list[Slot]]:
        slots = [(job, item) for job in jobs for item in range(job.num_items)]
        costs = [cost for job in jobs for cost in job.costs]
        return [[slots[i] for i in batch] for batch in plan(costs, self._budget)]

    def _run_bulk(self, adapter: Adapter, job: Job) -> Iterator[None]:
        for slots in self._sub_batches([job]):
            with self._turn.bulk():
                self._forward(adapter, slots)
            if job.error is not None:
                break
            yield
        job.request.reply(job.error or self._outputs(job))

    def _forward(self, adapter: Adapter, slots: Sequence[Slot]) -> None:
        """Run one sub-batch; a failure spoils the requests that have items in it, no others."""
        started = monotonic_ns()
        self._status.record["busy_since_ns"] = started
        jobs = {id(job): job for job, _ in slots}.values()
        try:
            self._scatter(slots, adapter.forward(pack(slots)))
        except Exception as exc:
            error = internal_error(self.name, exc)
            for job in jobs:
                job.error = error
        ended = monotonic_ns()
        for job in jobs:
            job.ran(started, ended)
        self._note(slots, started, ended)

    def _scatter(self, slots: Sequence[Slot], outputs: dict[str, npt.NDArray[Any]]) -> None:
        for row, (job, item) in enumerate(slots):
            job.put(item, {name: values[row] for name, values in outputs.items()})

    def _note(self, slots: Sequence[Slot], started: int, ended: int) -> None:
        self._busy.add(started, ended)
        record = self._status.record
        cost = sum(job.costs[item] for job, item in slots)
        self._status.add(num_sub_batches=1, num_items=len(slots), total_cost=cost)
        if len(slots) > 1:
            record["max_sub_batch_cost"] = max(int(record["max_sub_batch_cost"]), cost)
        record["last_used_ns"] = ended
        record["busy_since_ns"] = 0

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
