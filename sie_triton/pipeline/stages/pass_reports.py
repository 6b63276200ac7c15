"""Reports of forward passes: counters, a span, and a line for people who debug batching."""

from pathlib import Path
from threading import Lock
from time import monotonic_ns, time
from typing import TYPE_CHECKING

from sie_triton.contract.spec import ModelSpec
from sie_triton.pipeline.scheduling.job import SubBatch, total_cost
from sie_triton.pipeline.stages.inference_job import InferenceJob
from sie_triton.records.revisions import model_of
from sie_triton.records.status import StatusWriter
from sie_triton.records.traffic import BATCH_COST, BATCH_FILL, BATCH_ITEMS
from sie_triton.system.telemetry.batches import BatchDetail, BatchLog
from sie_triton.system.telemetry.identity import Trace
from sie_triton.system.telemetry.spans import spans

if TYPE_CHECKING:
    from sie_triton.system.telemetry.tracing import Spans


class PassReports:
    """Reports the forward passes of one model; `counting` guards the counters of its status record. Thread-safe."""

    def __init__(self, spec: ModelSpec, status: StatusWriter, counting: Lock, num_traced: int) -> None:
        self._num_traced = num_traced
        self._model, self._status, self._counting = spec.model, status, counting
        self._log = BatchLog(Path(spec.runtime.cache_dir or status.directory), model_of(status.model))

    def report(self, items: SubBatch[InferenceJob], ran: tuple[int, int], threads: int, budget: int) -> None:
        """Report a pass over `items`. `ran`: its start and end, in monotonic nanoseconds; `budget`: that of a lane."""
        num_items, total = len(items), total_cost(items)
        fill = 1000 * total // budget
        self._status.add(num_sub_batches=1, num_items=num_items, total_cost=total)
        if num_items > 1:
            self._status.raise_to(max_sub_batch_cost=total)
        with self._counting:
            self._status.traffic.observe({BATCH_ITEMS: num_items, BATCH_COST: total, BATCH_FILL: fill})
        if tracing := spans():
            self._record(tracing, items, total, ran)
        if self._log.is_on:
            self._write(items, total, ran, threads, budget)

    def close(self) -> None:
        self._log.close()

    def _record(self, tracing: "Spans", items: SubBatch[InferenceJob], total: int, ran: tuple[int, int]) -> None:
        """Record the span of a pass, if one of its requests has a recorded trace."""
        jobs = {id(job): job for job, _ in items}.values()
        traces = {id(job): trace for job in jobs if (trace := Trace.parse(job.context.trace)).is_recorded}
        if not traces:
            return
        attributes = {
            "sie.model": self._model,
            "sie.batch.items": len(items),
            "sie.batch.requests": len(jobs),
            "sie.batch.cost": total,
        }
        batch = tracing.batch("batch", *ran, attributes, [*traces.values()])
        for job in jobs:
            if id(job) in traces and len(job.batches) < self._num_traced:
                job.batches.append((*ran, batch))

    def _write(
        self, items: SubBatch[InferenceJob], total: int, ran: tuple[int, int], threads: int, budget: int
    ) -> None:
        """Write a line about a pass."""
        jobs, (started_ns, ended_ns) = {id(job): job for job, _ in items}.values(), ran
        detail = BatchDetail(
            at=time() - (monotonic_ns() - ended_ns) / 1e9,
            model=self._model,
            num_items=len(items),
            num_requests=len(jobs),
            cost=total,
            fill=round(total / budget, 3),
            threads=threads,
            waited_ms=round((started_ns - min(job.context.preprocessed_ns for job in jobs)) / 1e6, 3),
            duration_ms=round((ended_ns - started_ns) / 1e6, 3),
        )
        with self._counting:
            self._log.add(detail)
