"""A request inside inference: validated, queued for the device, and its results."""

import json
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from sie_triton.contract import LORA, VERBS, Rows
from sie_triton.contract.arrays import Array, Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import LENGTHS, lengths_of
from sie_triton.errors import InputError, ModelError
from sie_triton.models.families import FAMILIES, model_of
from sie_triton.models.inputs.chunks import spans_of
from sie_triton.models.inputs.features import from_tensors, num_pieces
from sie_triton.models.known_loras import KnownLoras
from sie_triton.pipeline.limits import StageLimits
from sie_triton.pipeline.scheduling import COST_FUNCTIONS
from sie_triton.pipeline.scheduling.job import Job
from sie_triton.pipeline.stages.checks import check_features
from sie_triton.pipeline.stages.cold_stage import told
from sie_triton.pipeline.stages.context import Context
from sie_triton.pipeline.stages.message import Messages, Seal
from sie_triton.pipeline.stages.open_requests import OpenRequest
from sie_triton.pipeline.stages.request import Origin, Outputs, Request
from sie_triton.pipeline.worker.messages import Loaded
from sie_triton.system.telemetry.spans import recorded, spans

if TYPE_CHECKING:
    from opentelemetry.trace import SpanContext

FEW = 64

# Start and end of a forward pass, in monotonic nanoseconds, and its span.
Passed = tuple[int, int, "SpanContext"]


class BusyLog:
    """Busy intervals of an instance, newest last. Only the latest `max_intervals` are kept."""

    def __init__(self, max_intervals: int = 1024) -> None:
        self._intervals: deque[tuple[int, int]] = deque(maxlen=max_intervals)

    def add(self, start_ns: int, end_ns: int) -> None:
        self._intervals.append((start_ns, end_ns))

    def idle_ns(self, since_ns: int, until_ns: int) -> int:
        """Return how long the instance was idle in a time span. Times before the log's beginning count as busy."""
        idle, upper = 0, until_ns
        for start, end in reversed(self._intervals):
            if end <= since_ns:
                return idle + max(0, upper - since_ns)
            idle += max(0, upper - end)
            upper = min(upper, start)
        if len(self._intervals) == self._intervals.maxlen:
            return idle
        return idle + max(0, upper - since_ns)


def covered_ns(intervals: Iterable[tuple[int, int]]) -> int:
    """Return the length of the union of (start, end) intervals.

    >>> covered_ns([(0, 4), (2, 6), (10, 11)])
    7
    """
    covered, reached = 0, 0
    for start, end in sorted(intervals):
        covered += max(0, end - max(start, reached))
        reached = max(reached, end)
    return covered


@dataclass(slots=True, eq=False, kw_only=True)
class InferenceJob(Job):
    """The job of one request. The lane that completes the job writes `computed`."""

    request: OpenRequest
    context: Context
    lengths: Ints  # of its items, int32
    computed: Rows = field(default_factory=dict)  # the tensors that the verb makes of the rows, once all are there
    batches: list["Passed"] = field(default_factory=list)  # its forward passes, if its trace is recorded

    def defer(self) -> None:
        """Defer the request. Raise BusyError if there is no thread for its deadline."""
        self.request.defer(self.deadline_ns, self.context.call)

    @property
    def row_lengths(self) -> Ints:
        """Number of tokens that each row stands for: those of an item, or of a part of it."""
        of_spans = [last - first for own in self.spans for first, last in own]
        return np.array(of_spans, np.int32) if of_spans else self.lengths

    @property
    def lora_name(self) -> str:
        """Name of the LoRA adapter in the request."""
        return str(self.context.options.get(LORA.name, ""))


class InferenceCodec:
    """Reads requests from preprocess and makes outputs for postprocess. Holds no request; any thread may call it."""

    def __init__(self, spec: ModelSpec, seal: Seal, limits: StageLimits = StageLimits()) -> None:
        self._model = model_of(spec)
        self._received = Messages.from_preprocess(self._model, seal)
        self._sent = Messages.from_inference(self._model, seal)
        self._is_ours = spec.family in FAMILIES
        self.loras = KnownLoras(spec)
        self.quarantine = Quarantine(limits)
        self._lengths, self._token_lengths = self._model.lengths, self._model.features[0].lengths
        self._cost = COST_FUNCTIONS[spec.batch_cost]
        self._own = [parameter.name for parameter in self._model.parameters]
        computed = [tensor for task in spec.tasks for tensor in VERBS[task].computed(self._model)]
        self.ragged = lengths_of(computed)

    def origin(self, request: Request) -> Origin:
        """Return what is known of a request that is not read yet; without a message it fails once it is."""
        try:
            return self._received.read(request, copy=False)[0].origin
        except InputError:
            return Origin(request.arrived_ns)

    def read(self, request: OpenRequest, loaded: Loaded) -> InferenceJob:
        """Read a request. Raise InputError if the loaded model cannot read it, ModelError if it ends workers."""
        context, rows = self._received.read(request.request, copy=True)
        features = from_tensors(rows, self._model.features)
        if self._is_ours:
            for name, limit in (*loaded.limits.items(), (self._token_lengths, loaded.max_length)):
                if name in rows and largest(rows[name]) > limit:
                    raise InputError.at(name, f"must be at most {limit}, the largest that the loaded model reads")
        else:  # another package's processor may be wrong
            check_features(features, self._model.features, loaded.max_length, loaded.limits)
        lengths = rows[self._lengths]
        verb, options = context.verb, context.options
        job = InferenceJob(
            request=request,
            context=context,
            lengths=lengths,
            features=features,
            is_query=verb.is_query(options, len(lengths), context.num_items),
            costs=self._cost(lengths).tolist(),
            wanted=verb.needed(self._model, options),
            deadline_ns=context.deadline_ns,
            options={name: options[name] for name in self._own if name in options} if self._own else None,
            lora=self.loras.source(str(lora)) if (lora := options.get(LORA.name)) else "",
            spans=spans_of(context.chunks) if context.chunks else (),
        )
        self.quarantine.check(job)
        return job

    def collect(self, job: InferenceJob) -> None:
        """Compute the tensors that the verb forwards, from the rows; if that fails, the job has an error."""
        context = job.context
        try:
            pieces = num_pieces(job.features, job.num_items)
            job.computed = context.verb.collect(self._model, context.options, job.rows, pieces)
        except Exception as exc:
            job.error = told("inference", exc)

    def write(self, job: InferenceJob, busy: BusyLog, loads: BusyLog) -> Outputs:
        """Return the outputs for postprocess. `busy`: times when the instance was busy; `loads`: when it loaded."""
        context = job.context
        context.inference_ns = covered_ns(job.ran)
        starts, ends = zip(*job.ran, strict=True)
        waited = max(ends) - context.preprocessed_ns - context.inference_ns
        since, until = context.preprocessed_ns, min(starts)
        context.batch_wait_ns = busy.idle_ns(since, until)
        context.loading_ns = max(0, until - since - loads.idle_ns(since, until))
        context.queue_ns = max(0, waited - context.batch_wait_ns - context.loading_ns)
        if spans():
            _record(job, until)
        return self._sent.write(context, {**job.computed, LENGTHS.name: job.row_lengths})


def largest(values: Array) -> int:
    """Return the largest of integers, or 0. For a few of them plain Python is faster than NumPy."""
    return max(values.ravel().tolist(), default=0) if values.size <= FEW else int(values.max())


def _record(job: InferenceJob, began_ns: int) -> None:
    """Record the spans of a finished job, whose first forward pass began at `began_ns`."""
    context = job.context
    if (found := recorded(context.trace)) is None:
        return
    tracing, trace = found
    waits = {"sie.loading_ms": context.loading_ns / 1e6, "sie.batch_wait_ms": context.batch_wait_ns / 1e6}
    tracing.add(trace, "queue", context.preprocessed_ns, began_ns, waits)
    for started, ended, batch in job.batches:
        tracing.add(trace, "forward pass", started, ended, links=[batch])


ENDED_TWICE = "inference: the worker process ended twice while it computed this request"


class Quarantine:
    """Refuses requests that have ended two workers, by hashes of their features and parameters. Thread-safe."""

    def __init__(self, limits: StageLimits, clock: Callable[[], float] = monotonic) -> None:
        self._limits, self._clock, self._lock = limits, clock, Lock()
        self._until: dict[bytes, float] = {}

    def add(self, job: Job) -> ModelError:
        """Refuse `job` from now on; return the error of this time."""
        with self._lock:
            self._until[_hash_of(job)] = self._clock() + self._limits.refused_s
            while len(self._until) > self._limits.num_refused:
                del self._until[next(iter(self._until))]
        return ModelError(ENDED_TWICE)

    def check(self, job: Job) -> None:
        """Raise ModelError if `job` is refused. Nothing is hashed while none is."""
        if self._until and self._clock() < self._until.get(_hash_of(job), 0.0):
            raise ModelError(f"{ENDED_TWICE}, less than {self._limits.refused_s:g} s ago")


def _hash_of(job: Job) -> bytes:
    read = [sorted(job.wanted), list(map(bool, job.is_query)), job.lora, job.options]
    digest = blake2b(json.dumps(read, sort_keys=True, default=str).encode())
    for name, ragged in sorted(job.features.items()):
        for array in ragged:
            if array is not None:
                digest.update(f"{name} {array.dtype} {array.shape}".encode())
                digest.update(array.tobytes())
    return digest.digest()
