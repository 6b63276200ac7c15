"""The context of a request on its way through the steps: read and checked once, on entry, then sealed.

client → preprocess   makes it from the request's parameters, id, trace context and timeout
preprocess → inference → postprocess   the tensor `context`: the seal, then these fields as JSON
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract import VERBS, Model, Options, Verb, check_parameters
from sie_triton.contract.tensors import CONTEXT
from sie_triton.errors import InputError
from sie_triton.records.calls import CALL
from sie_triton.scheduling.job import NEVER, deadline_ns
from sie_triton.spec import Profile
from sie_triton.stages.request import Origin, Request, vector
from sie_triton.stages.seal import SEAL_BYTES, Seal, Tensors
from sie_triton.telemetry.identity import REQUEST_ID, TRACEPARENT, identity, is_identity
from sie_triton.telemetry.spans import spans
from sie_triton.telemetry.trace import Trace


@dataclass(slots=True)
class Context:
    """The context of one request. Times are monotonic, in nanoseconds.

    `options`: the checked parameters that later steps read, over those of the profile. `num_items`: number of items,
    where each page of a PDF counts as one. `pages`: for each item sent, the page numbers that were read, none if it is
    not a PDF; empty if no item is a PDF. `ticket`: see records.tickets. Inference adds the durations: `queue_ns` is the
    wait while it was busy with other work, `batch_wait_ns` the wait while it was idle, `loading_ns` the wait while the
    model was loaded. `truncated`: indices of the items of which the model reads only the beginning.
    """

    verb: Verb
    options: dict[str, Any]
    id: str = ""
    trace: str = ""
    num_items: int = 0
    arrived_ns: int = 0
    deadline_ns: int = NEVER
    preprocessed_ns: int = 0
    ticket: int = 0
    queue_ns: int = 0
    batch_wait_ns: int = 0
    inference_ns: int = 0
    loading_ns: int = 0
    pages: list[list[int]] = field(default_factory=list)
    truncated: list[int] = field(default_factory=list)

    @property
    def origin(self) -> Origin:
        return Origin(self.id, Trace.parse(self.trace), self.arrived_ns)

    def to_json(self) -> bytes:
        fields = [
            self.verb.name,
            self.options,
            self.id,
            self.trace,
            self.num_items,
            self.arrived_ns,
            self.deadline_ns,
            self.preprocessed_ns,
            self.ticket,
            self.queue_ns,
            self.batch_wait_ns,
            self.inference_ns,
            self.loading_ns,
            self.pages,
            self.truncated,
        ]
        return json.dumps(fields).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Context":
        """Parse a context. Raise ValueError or TypeError if it is malformed, and KeyError for an unknown verb."""
        verb, options, *others = json.loads(text)
        if type(options) is not dict or list(map(type, others)) != OTHERS:
            raise ValueError("these are not the fields of a context")
        _, _, *numbers, pages, truncated = others
        if max(map(abs, numbers)) > NEVER or not _are_indices([*truncated, *(page for each in pages for page in each)]):
            raise ValueError("a number of the context is out of range")
        return cls(VERBS[verb], options, *others)


OTHERS = [str, str, *[int] * 9, list, list]

# Largest index of an item or number of a page: the outputs are int32.
MAX_INDEX = 2**31 - 1


def _are_indices(values: list[Any]) -> bool:
    return all(type(value) is int and 0 <= value <= MAX_INDEX for value in values)


class Contexts:
    """Makes, reads and writes the contexts of one model's requests. Thread-safe."""

    def __init__(self, model: Model, seal: Seal) -> None:
        self._seal = seal
        self._parameters = {name: VERBS[name].all_parameters(model) for name in model.spec.tasks}
        self._sent_on = {
            verb: {name for name, parameter in parameters.items() if not parameter.for_prompt}
            for verb, parameters in self._parameters.items()
        }
        self._defaults = {
            verb: {profile.name: of_profile(profile, names) for profile in model.spec.profiles}
            for verb, names in self._sent_on.items()
        }

    def enter(self, request: Request, verb: Verb, arrived_ns: int) -> tuple[Context, Options]:
        """Return a new context for a client's request, and the checked parameters. InputError names a wrong one."""
        sent = {name: value for name, value in request.parameters.items() if name != CALL and not is_identity(name)}
        given = check_parameters(sent, self._parameters[verb.name])
        sent_on, defaults = self._sent_on[verb.name], self._defaults[verb.name][str(given.get("profile", "default"))]
        options = {**defaults, **{name: value for name, value in given.items() if name in sent_on}}
        deadline = deadline_ns(arrived_ns, request.timeout_us)
        id, trace = identity_of(request)
        return Context(verb, options, id, str(trace), 0, arrived_ns, deadline), given

    def read(self, request: Request, tensors: Tensors) -> Context:
        """Return the context that the previous step sent with `tensors`. Raise InputError if it did not seal them."""
        return self._parsed(self._seal.opened(vector(request, CONTEXT.name, np.uint8), tensors))

    def peek(self, request: Request) -> Context | None:
        """Return the context without checking its seal; None if it cannot be read."""
        try:
            return self._parsed(vector(request, CONTEXT.name, np.uint8)[SEAL_BYTES:].tobytes())
        except InputError:
            return None

    def write(self, context: Context, tensors: Tensors) -> npt.NDArray[np.uint8]:
        """Seal a context for the next step, which must pass `tensors` in the same order."""
        return self._seal.sealed(context.to_json(), tensors)

    def _parsed(self, text: bytes) -> Context:
        try:
            context = Context.from_json(text)
            parameters = self._parameters[context.verb.name]
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise InputError.at("context", "must be as the previous step writes it") from exc
        if self._seal.is_open:
            context.options = check_parameters(context.options, parameters)
        return context


def identity_of(request: Request) -> tuple[str, Trace]:
    """Return the id of a client's request, which may be empty, and its trace, which begins here."""
    headers, tracing = identity(request.parameters), spans()
    traceparent = headers.get(TRACEPARENT, "")
    trace = tracing.begin(traceparent) if tracing else Trace.unrecorded(traceparent)
    return request.id or headers.get(REQUEST_ID, ""), trace


def of_profile(profile: Profile, names: Collection[str]) -> dict[str, Any]:
    """Return the profile's defaults for the parameters with these names."""
    return {name: value for name, value in profile.parameters.items() if name in names}


def timing_ms(context: Context, started_ns: int) -> npt.NDArray[np.float32]:
    """Return the output `timing_ms`, float32 [7], of a postprocess that started at `started_ns`."""
    now = monotonic_ns()
    parts = [
        context.queue_ns,
        context.preprocessed_ns - context.arrived_ns,
        context.batch_wait_ns,
        context.inference_ns,
        now - started_ns,
        now - context.arrived_ns,
        context.loading_ns,
    ]
    return np.array(parts, np.float64).astype(np.float32) / np.float32(1e6)
