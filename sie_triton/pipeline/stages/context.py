"""The context of a request on its way through the steps: read and checked once, on entry, then sealed.

client → preprocess   makes it from the request's parameters, id, trace context and timeout
preprocess → inference → postprocess   in the message between two steps
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from time import monotonic_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract import VERBS, Model, Options, Parameter, Verb, check_parameters
from sie_triton.contract.spec import Profile
from sie_triton.pipeline.scheduling.job import NEVER, deadline_ns
from sie_triton.pipeline.stages.request import Origin, Request
from sie_triton.records.calls import BULK, CALL
from sie_triton.system.telemetry.identity import REQUEST_ID, TRACEPARENT, Trace, identity, is_identity
from sie_triton.system.telemetry.spans import spans


@dataclass(slots=True)
class Context:
    """The context of one request. Times are monotonic, in nanoseconds. Inference adds the durations."""

    verb: Verb
    options: Options  # checked parameters that later steps read, over those of the profile
    id: str = ""
    trace: str = ""
    call: str = ""  # token of the door's call, see records.calls; may be empty
    num_items: int = 0  # each page of a PDF, and each chunk of a text, counts as one
    arrived_ns: int = 0
    deadline_ns: int = NEVER
    preprocessed_ns: int = 0
    ticket: int = 0  # ascending number of the request, see records.request_limit
    queue_ns: int = 0  # wait while inference was busy with other work
    batch_wait_ns: int = 0  # wait while it was idle
    inference_ns: int = 0
    loading_ns: int = 0  # wait for the model to load
    pages: list[list[int]] = field(default_factory=list)  # numbers of the pages read of each item; empty: no PDFs
    truncated: list[int] = field(default_factory=list)  # indices of items of which the model reads only the beginning
    # Item sent, start and end of each chunk, and its first and last token if the text is read whole; empty: not split.
    chunks: list[list[int]] = field(default_factory=list)
    is_bulk: bool = False  # the client asks that the request give way to others

    @property
    def origin(self) -> Origin:
        return Origin(self.arrived_ns, self.deadline_ns, self.id, Trace.parse(self.trace), self.call)

    def fields(self) -> Sequence[Any]:
        """Return the values from which `of` makes an equal context."""
        return (self.verb.name, *OTHERS(self))

    @classmethod
    def of(cls, fields: Sequence[Any]) -> "Context":
        verb, *others = fields
        return cls(VERBS[verb], *others)


GIVES_WAY = Parameter(BULK, bool)

OTHERS = attrgetter(*(each.name for each in fields(Context) if each.name != "verb"))


class Contexts:
    """Makes the contexts of one model's requests. Thread-safe."""

    def __init__(self, model: Model) -> None:
        self._parameters = {name: VERBS[name].all_parameters(model) for name in model.spec.tasks}
        self._sent_on = {
            verb: {name for name, parameter in parameters.items() if not parameter.for_prompt}
            for verb, parameters in self._parameters.items()
        }
        self._defaults = {
            verb: {profile.name: of_profile(profile, names) for profile in model.spec.profiles}
            for verb, names in self._sent_on.items()
        }

    def enter(self, request: Request, verb: Verb) -> tuple[Context, Options]:
        """Return a new context for a client's request, and the checked parameters. InputError names a wrong one."""
        given: dict[str, Any] = {}
        is_bulk = False
        if parameters := request.parameters:
            sent = {
                name: value for name, value in parameters.items() if name not in (BULK, CALL) and not is_identity(name)
            }
            given = check_parameters(sent, self._parameters[verb.name])
            is_bulk = BULK in parameters and bool(GIVES_WAY.check(parameters[BULK]))
        options = self._defaults[verb.name][str(given.get("profile", "default"))]
        if given:
            sent_on = self._sent_on[verb.name]
            options = {**options, **{name: value for name, value in given.items() if name in sent_on}}
        deadline = deadline_ns(request.arrived_ns, request.timeout_us)
        id, trace = identity_of(request)
        arrived_ns, call = request.arrived_ns, token_of(request)
        return Context(verb, options, id, trace, call, 0, arrived_ns, deadline, is_bulk=is_bulk), given


def token_of(request: Request) -> str:
    """Return the token of the door's call in a client's request; empty if there is none."""
    return str(request.parameters.get(CALL, ""))


def identity_of(request: Request) -> tuple[str, str]:
    """Return the id of a client's request, which may be empty, and its trace as text, which begins here."""
    headers = identity(request.parameters) if request.parameters else {}
    traceparent = headers.get(TRACEPARENT, "")
    trace = ""
    if tracing := spans():
        trace = str(tracing.begin(traceparent))
    elif traceparent:
        trace = str(Trace.unrecorded(traceparent))
    return request.id or headers.get(REQUEST_ID, ""), trace


def of_profile(profile: Profile, names: Collection[str]) -> dict[str, Any]:
    """Return the profile's defaults for the parameters with these names."""
    return {name: value for name, value in profile.parameters.items() if name in names}


def timing_ms(context: Context, started_ns: int) -> npt.NDArray[np.float32]:
    """Return the output `timing_ms`, float32 [7], of a postprocess that started at `started_ns`."""
    now = monotonic_ns()
    parts = (
        context.queue_ns,
        context.preprocessed_ns - context.arrived_ns,
        context.batch_wait_ns,
        context.inference_ns,
        now - started_ns,
        now - context.arrived_ns,
        context.loading_ns,
    )
    return np.array([part / 1e6 for part in parts], np.float32)
