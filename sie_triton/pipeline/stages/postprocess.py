"""inference → postprocess → client: the requested transforms, and the timing."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract import VERBS, Answering, Computed
from sie_triton.contract.arrays import Ints
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import CHUNKS, LENGTHS, NUM_PAGES, PAGE_NUMBERS, TIMING_MS, TOKEN_COUNT, TRUNCATED
from sie_triton.errors import SIEError
from sie_triton.models.families import FAMILIES, model_of
from sie_triton.pipeline.stages.checks import check_computed, widths_of
from sie_triton.pipeline.stages.cold_stage import told
from sie_triton.pipeline.stages.context import Context, timing_ms
from sie_triton.pipeline.stages.message import Messages, Seal
from sie_triton.pipeline.stages.request import Answer, Outputs, Request
from sie_triton.records.traffic import ITEMS, LATENCY, QUEUE, TOKENS, TrafficWriter
from sie_triton.system.telemetry.identity import MAX_ID, Trace
from sie_triton.system.telemetry.request_log import RequestLog
from sie_triton.system.telemetry.spans import close_spans, recorded, spans


@dataclass(slots=True)
class Arrived:
    """A request in postprocess. `lengths`: tokens per item, int32; `error`: set if `prepare` failed."""

    context: Context
    computed: Computed
    lengths: Ints
    error: SIEError | None = None


class Postprocess:
    """The stage that transforms results. It loads nothing, so it is never cold and defers no request.

    One thread calls `execute`.
    """

    name = "postprocess"

    def __init__(self, spec: ModelSpec, seal: Seal, traffic: TrafficWriter) -> None:
        self._traffic = traffic
        self._model = model_of(spec)
        self._received = Messages.from_inference(self._model, seal)
        self._is_ours, self._widths = spec.family in FAMILIES, widths_of(self._model)
        self._reads_pages = self._model.reads_pages
        self._verbs = [VERBS[task] for task in spec.tasks]
        # The client's inputs that each verb needs again, with their names in the step.
        self._passed_on = {
            verb.name: [(tensor.name, verb.input_name(tensor)) for tensor in verb.passed_on(self._model)]
            for verb in self._verbs
        }
        self._answering = {verb.name: verb.answering(self._model) for verb in self._verbs}
        self._log = RequestLog(spec.model)

    def execute(self, requests: Sequence[Request]) -> list[Answer]:
        started = monotonic_ns()
        read = [self._read(request) for request in requests]
        for name, answering in self._answering.items():
            if of_verb := [each for each in read if isinstance(each, Arrived) and each.context.verb.name == name]:
                self._prepare(answering, of_verb)
        answers = [self._answer(each, started) if isinstance(each, Arrived) else each for each in read]
        self._count(read, answers)
        if self._log.is_on or spans():
            self._tell(read, answers, started)
        return answers

    def close(self) -> None:
        close_spans()

    def _count(self, read: Sequence[Arrived | SIEError], answers: Sequence[Answer]) -> None:
        now = monotonic_ns()
        for arrived, answer in zip(read, answers, strict=True):
            if isinstance(answer, SIEError):
                self._traffic.fail(answer)
            elif isinstance(arrived, Arrived):
                context, verb = arrived.context, arrived.context.verb.name
                waited = context.queue_ns + context.batch_wait_ns + context.loading_ns
                latency, num_tokens = now - context.arrived_ns, sum(arrived.lengths.tolist())
                values = {LATENCY: latency, QUEUE: waited, ITEMS: context.num_items, TOKENS: num_tokens}
                self._traffic.observe(values, verb)

    def _tell(self, read: Sequence[Arrived | SIEError], answers: Sequence[Answer], started_ns: int) -> None:
        """Write the log lines, and record the spans, of the requests that end here."""
        now, model = monotonic_ns(), self._model.spec.model
        for arrived, answer in zip(read, answers, strict=True):
            if isinstance(arrived, Arrived):
                context = arrived.context
                trace, latency_ms = Trace.parse(context.trace), (now - context.arrived_ns) / 1e6
                error = f"{answer.kind}: {answer}" if isinstance(answer, SIEError) else ""
                about: dict[str, Any] = {"verb": context.verb.name, "num_items": context.num_items}
                if self._log.wants(latency_ms):
                    self._log.add(latency_ms, context.id, trace.trace_id, error, **about)
                if found := recorded(context.trace):
                    tracing, trace = found
                    tracing.add(trace, self.name, started_ns, now)
                    about |= {"model": model, "request_id": context.id[:MAX_ID]}
                    attributes = {f"sie.{name}": value for name, value in about.items()}
                    tracing.end(trace, f"{context.verb.name} {model}", context.arrived_ns, attributes, error)

    def _read(self, request: Request) -> Arrived | SIEError:
        try:
            context, tensors = self._received.read(request, copy=False)
            verb, lengths = context.verb, tensors.pop(LENGTHS.name)
            if not self._is_ours:  # another package's adapter may be wrong
                check_computed(tensors, verb.sent(self._model, context.options), context.num_items, self._widths)
            of_items = verb.token_count(lengths, context.num_items, tensors)
            for name, input_name in self._passed_on[verb.name]:
                if (given := request.tensor(input_name)) is not None:
                    tensors[name] = given[0]
            if context.chunks:
                tensors[CHUNKS.name] = np.array(context.chunks, np.int32)[:, :3]
            return Arrived(context, Computed(context.options, tensors), of_items)
        except Exception as exc:
            return told(self.name, exc)

    def _prepare(self, answering: Answering, arrived: Sequence[Arrived]) -> None:
        """Prepare requests together. If that fails, prepare each alone, so that only the faulty ones fail."""
        try:
            answering.prepare([each.computed for each in arrived])
        except Exception as exc:
            if len(arrived) == 1:
                arrived[0].error = told(self.name, exc)
            else:
                for each in arrived:
                    self._prepare(answering, [each])

    def _answer(self, arrived: Arrived, started_ns: int) -> Answer:
        try:
            return arrived.error or self._outputs(arrived, started_ns)
        except Exception as exc:
            return told(self.name, exc)

    def _outputs(self, arrived: Arrived, started_ns: int) -> Outputs:
        context = arrived.context
        outputs = {
            **self._answering[context.verb.name].outputs(arrived.computed),
            TOKEN_COUNT.name: arrived.lengths,
            TRUNCATED.name: _marked(context.truncated, len(arrived.lengths)),
            TIMING_MS.name: timing_ms(context, started_ns),
        }
        return {**outputs, **_pages(context)} if self._reads_pages else outputs


def _marked(indices: list[int], num_items: int) -> npt.NDArray[np.bool_]:
    """Return bool [items], True at `indices`."""
    marked = np.zeros(num_items, np.bool_)
    if indices:
        marked[indices] = True
    return marked


def _pages(context: Context) -> Outputs:
    pages = context.pages or [[]] * context.num_items
    return {
        NUM_PAGES.name: np.array(list(map(len, pages)), np.int32),
        PAGE_NUMBERS.name: np.array([number for each in pages for number in each], np.int32),
    }
