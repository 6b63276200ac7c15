"""client → preprocess → queue of inference: elements become packed features with an exact cost.

This stage validates the parameters of requests, and refuses requests while too many are in progress.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from time import monotonic_ns

from sie_triton.contract import LORA, PAGES, VERBS, Features, Options, Verb
from sie_triton.contract.spec import ModelSpec
from sie_triton.errors import BusyError, InputError, SIEError
from sie_triton.models.families import family, load_processor, model_of
from sie_triton.models.families.shared.token_pooling import check_poolable
from sie_triton.models.inputs import KIND_OF, Processor, kind_of
from sie_triton.models.inputs.chunks import Chunking, Splitter
from sie_triton.models.inputs.features import to_tensors, truncated
from sie_triton.models.inputs.pdf_pages import ALL, PageReader, PageSelection
from sie_triton.models.inputs.request_parts import (
    Framed,
    RequestParts,
    blame,
    check_read,
    features_of,
    is_bulk,
    name_of,
)
from sie_triton.models.inputs.text import reading as reading_text
from sie_triton.models.known_loras import KnownLoras
from sie_triton.models.weights import cache_of, locate, pin_of
from sie_triton.models.weights.locate import SMALL_FILES
from sie_triton.pipeline.scheduling import COST_FUNCTIONS
from sie_triton.pipeline.scheduling.background import Background
from sie_triton.pipeline.scheduling.job import deadline_ns
from sie_triton.pipeline.scheduling.preprocess_slots import Slots
from sie_triton.pipeline.stages.cold_stage import ColdStage, told
from sie_triton.pipeline.stages.context import Context, Contexts, identity_of, token_of
from sie_triton.pipeline.stages.message import Messages, Seal
from sie_triton.pipeline.stages.open_requests import OpenRequest
from sie_triton.pipeline.stages.preparing import Pages, Preparation, Tokenization, takes_long
from sie_triton.pipeline.stages.request import Origin, Outputs, Request
from sie_triton.pipeline.stages.tokenizer_files import naming, with_tokenizers
from sie_triton.records.request_limit import OtherModels, RequestLimit
from sie_triton.records.status import StatusReader, StatusWriter
from sie_triton.records.tokenizer_links import publish_tokenizer
from sie_triton.system.host.container import num_processors
from sie_triton.system.host.file_locks import LockFile
from sie_triton.system.telemetry.identity import Trace
from sie_triton.system.telemetry.spans import recorded, spans

# Maximum of the tensor `cost`, int32.
MAX_COST = 2**31 - 1

# In the directory of status records.
SLOTS_FILE = "preprocess.slots"


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request, read and validated."""

    request: OpenRequest
    context: Context
    parts: RequestParts
    pages: PageSelection = ALL
    chunking: Chunking | None = None  # None: the texts are not split

    @property
    def is_small(self) -> bool:
        """True if Triton's thread makes the features at once."""
        return self.chunking is None and not (self.context.is_bulk or is_bulk(self.parts) or takes_long(self.parts))


class Preprocess(ColdStage[Processor]):
    """Holds the family's processor, which the first request loads, and the limits on requests in progress.

    `ColdStage.execute` receives a batch on Triton's thread and calls `process`, which makes the features of small
    requests. All other features are made by threads that take one of the server's preprocessing slots for each step.
    InputError names the invalid part of a request; BusyError refuses a request over the limit; LoadError says why there
    is no processor.
    """

    name = "preprocess"

    def __init__(self, spec: ModelSpec, status: StatusWriter) -> None:
        self._spec = spec
        self._model = model_of(spec)
        self._verbs = [VERBS[task] for task in spec.tasks]
        self._profiles = {profile.name: profile for profile in spec.profiles}
        # Inputs of each verb, with their names in the step, which tell through which ensemble a request came.
        self._inputs = {
            verb.name: [(tensor, verb.input_name(tensor)) for tensor in verb.inputs(spec.inputs)]
            for verb in self._verbs
        }
        self._kind = kind_of(spec.inputs)
        runtime, directory = spec.runtime, status.directory
        self._limit = RequestLimit(
            runtime.max_concurrent_requests,
            runtime.max_requests_per_model,
            status,
            StatusReader(directory, status.model, "inference"),
            OtherModels(directory, status.model),
        )
        self._contexts = Contexts(self._model)
        self._sent = Messages.from_preprocess(self._model, Seal(directory))
        self._lengths = self._model.lengths
        self._cost = COST_FUNCTIONS[spec.batch_cost]
        self._loras = KnownLoras(spec)
        # The tokenizer library would start threads of its own, one a core in each process, beside the slots.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        super().__init__(status, runtime.request_limit)
        locks = LockFile(directory / SLOTS_FILE)
        self._slots = Slots(locks, runtime.preprocessor_workers, runtime.image_workers)
        # One core is left to small requests.
        self._num_bulk = min(self._slots.num_workers, max(1, (runtime.cpu_threads or num_processors()) - 1))
        self._bulk = Background("bulk", self.fault, self._num_bulk)
        self._slow = Background("media", self.fault, self._slots.num_images)
        # PDFs have threads of their own. Few are open at once, because each has a process that draws it.
        num_drawing = self._slots.num_drawing
        self._drawing = Background("pages", self.fault, num_drawing, most_begun=2 * num_drawing)

    def places_left(self) -> int:
        return self._limit.places_left()

    def refusal(self) -> BusyError:
        return self._limit.refusal()

    def origin(self, request: Request) -> Origin:
        id = trace = call = ""
        with suppress(InputError):  # it fails once it is read
            id = request.id
            id, trace = identity_of(request)
            call = token_of(request)
        deadline = deadline_ns(request.arrived_ns, request.timeout_us)
        return Origin(request.arrived_ns, deadline, id, Trace.parse(trace), call)

    def load(self) -> Processor:
        spec = self._spec
        kind = family(spec.family)
        with self.fetching() as report_progress:
            origin = locate(
                spec.weights,
                allow_hub=spec.runtime.hf_fallback,
                cluster=spec.runtime.cluster_cache,
                patterns=(*SMALL_FILES, *kind.files),
                pin=pin_of(self.status.model, self.status.directory),
                report_progress=report_progress,
                other_repositories=kind.other_repositories,
                cache=cache_of(spec.runtime),
            )
            directory = with_tokenizers(spec, origin, self.status.directory, report_progress)
        publish_tokenizer(self.status.directory, spec, directory)
        # Image memory is shared by the processes that share the directory.
        shared = replace(spec, runtime=replace(spec.runtime, status_dir=str(self.status.directory)))
        with naming(origin, directory):
            return load_processor(shared, directory)

    def process(self, loaded: Processor, requests: Sequence[OpenRequest]) -> None:
        """Answer small requests at once and together; start the others on other threads."""
        small: list[ReadRequest] = []
        others: list[ReadRequest] = []
        for request in requests:
            if (reading := self._read(loaded, request)) is not None:
                (small if reading.is_small else others).append(reading)
        if small:
            self._answer_small(loaded, small)
        for reading in others:
            self._start(loaded, reading)

    def _start(self, processor: Processor, reading: ReadRequest) -> None:
        """Start the work on a request on other threads, and defer it."""
        request = reading.request
        try:
            request.defer(reading.context.deadline_ns, reading.context.call)
            if reading.chunking is not None:
                self._bulk.submit(self._split(processor, reading, reading.chunking), partial(self._give_up, request))
            elif takes_long(reading.parts):
                self._prepare(processor, reading)
            else:
                self._tokenize(processor, reading)
        except BusyError as exc:  # there is no thread for it
            self._fail([request], exc)

    def _split(self, processor: Processor, reading: ReadRequest, chunking: Chunking) -> Iterator[None]:
        """Split the texts of a request, one at each step, then tokenize their chunks like items, or the whole texts."""
        (framed,), context = reading.parts, reading.context
        splitter, texts = Splitter(processor.tokenizer_of(framed.part), framed.frame, chunking), framed.part.elements
        for i, text in enumerate(texts):
            with self._slots.bulk():
                if reading.request.end_if_unwanted():
                    return
                with reading_text(name_of(framed.part, i)):
                    context.chunks += [[i, *place] for place in splitter.places(text)]
            yield
        context.num_items = len(context.chunks)
        if not chunking.is_late:
            chunks = [texts[i][start:end] for i, start, end in context.chunks]
            framed = replace(framed, part=replace(framed.part, elements=chunks))
        self._tokenize(processor, ReadRequest(reading.request, context, [framed]))

    def close(self) -> None:
        super().close()
        for each in (self._bulk, self._slow, self._drawing):
            each.close()
        self._slots.close()

    def _prepare(self, processor: Processor, reading: ReadRequest) -> None:
        """Prepare the elements of a request on several threads, while other requests proceed."""
        request = reading.request

        def done(parts: RequestParts, pages: Pages) -> None:
            context = reading.context
            context.num_items = context.verb.num_items([framed.part for framed in parts])
            context.pages = pages if any(pages) else []
            with self._slots.bulk():
                answer = self._outputs_alone(processor, ReadRequest(request, context, parts))
            request.answer(answer)

        runtime = self._spec.runtime
        reader = PageReader(reading.pages, runtime.max_pages, runtime.max_document_bytes, request.end_if_unwanted)
        preparation = Preparation(processor, reading.parts, reader, request.end_if_unwanted, done, self._slots)
        threads = self._drawing if preparation.draws_pages else self._slow
        for strand in preparation.strands(1 if preparation.draws_pages else self._slots.num_images):
            threads.submit(strand, partial(self._give_up, request))

    def _read(self, processor: Processor, open_request: OpenRequest) -> ReadRequest | None:
        """Read a request; answer it with its error, and return None, if it is invalid."""
        request = open_request.request
        try:
            context, given = self._contexts.enter(request, self._verb_of(request))
            self.check_call(context.call)
            if lora := context.options.get(LORA.name):
                self._loras.source(str(lora))
            pages = PageSelection.read(str(given[PAGES.name])) if PAGES.name in given else ALL
            parts = self._read_parts(processor, request, context, given)
            chunking = Chunking.read(given, context.options) if given else None
            return ReadRequest(open_request, context, parts, pages, chunking)
        except Exception as exc:
            open_request.answer(told(self.name, exc))
            return None

    def _verb_of(self, request: Request) -> Verb:
        """Return the verb of a request, which the names of its inputs tell."""
        if len(self._verbs) == 1:
            return self._verbs[0]
        found = [
            verb for verb in self._verbs if any(request.tensor(name) is not None for _, name in self._inputs[verb.name])
        ]
        if len(found) != 1:
            tensors = {verb: "+".join(name for _, name in inputs) for verb, inputs in self._inputs.items()}
            each = "; ".join(f"{name}: {inputs}" for name, inputs in tensors.items())
            raise InputError.at("inputs", f"send those of exactly one task ({each})")
        return found[0]

    def _read_parts(self, processor: Processor, request: Request, context: Context, given: Options) -> RequestParts:
        verb = context.verb
        sent = {t.name: KIND_OF[t.name].read(request.tensor(name), t) for t, name in self._inputs[verb.name]}
        profile = self._profiles[str(given.get("profile", "default"))]
        parts = verb.read(sent, given, profile, self._model)
        context.num_items = verb.num_items(parts)
        return [Framed(part, processor.frame(part), self._kind) for part in parts]

    def _answer_small(self, processor: Processor, readings: Sequence[ReadRequest]) -> None:
        """Make features of requests together. If one of them cannot be read, process each alone."""
        try:
            features = features_of(processor, [each.parts for each in readings])
        except BaseException:
            for each in readings:
                each.request.answer(self._outputs_alone(processor, each))
            return
        for each, own in zip(readings, features, strict=True):
            each.request.answer(self._outputs_of(each, own))

    def _outputs_alone(self, processor: Processor, reading: ReadRequest) -> Outputs | SIEError:
        try:
            (features,) = features_of(processor, [reading.parts])
        except BaseException as exc:
            return self._blame(processor, reading, exc)
        return self._outputs_of(reading, features)

    def _tokenize(self, processor: Processor, reading: ReadRequest) -> None:
        """Make the features of a bulk request on several threads."""
        request = reading.request

        def encode(parts: RequestParts) -> Features:
            try:
                (features,) = features_of(processor, [parts])
            except BaseException as exc:
                raise self._blame(processor, reading, exc) from exc
            return features

        def done(features: Features) -> None:
            request.answer(self._outputs_of(reading, features))

        tokenization = Tokenization(reading.parts, encode, request.end_if_unwanted, done, self._slots)
        for strand in tokenization.strands(self._num_bulk):
            self._bulk.submit(strand, partial(self._give_up, request))

    def _give_up(self, request: OpenRequest, error: BaseException) -> None:
        request.answer(told(self.name, error))

    def _blame(self, processor: Processor, reading: ReadRequest, error: BaseException) -> SIEError:
        """Return the error of a request that could not be made into features; it names the element if possible."""
        try:
            blame(processor, reading.parts)
        except BaseException as exc:
            error = exc
        return told(self.name, error)

    def _outputs_of(self, reading: ReadRequest, features: Features) -> Outputs | SIEError:
        try:
            return self._outputs(reading, features)
        except BaseException as exc:
            return told(self.name, exc)

    def _outputs(self, reading: ReadRequest, features: Features) -> Outputs:
        context = reading.context
        tensors = to_tensors(features, self._model.features)
        # Lists, because NumPy is slower for few numbers.
        lengths = tensors[self._lengths].tolist()
        if 0 in lengths:
            check_read(reading.parts, lengths)
        if context.options:
            check_poolable(reading.parts, features, context.options)
        cost = min(sum(self._cost(tensors[self._lengths]).tolist()), MAX_COST)
        context.truncated = truncated(features, context.num_items)
        context.preprocessed_ns, context.ticket = monotonic_ns(), self.status.next_ticket()
        if spans():
            self._record(context, cost)
        return self._sent.write(context, tensors, cost)

    def _record(self, context: Context, cost: int) -> None:
        if found := recorded(context.trace):
            tracing, trace = found
            tracing.add(trace, self.name, context.arrived_ns, context.preprocessed_ns, {"sie.cost": cost})
