"""What is known of one request, on its way through the steps: read and checked once, on entry, and sealed.

client → preprocess   makes it of the request's parameters, id, trace context and timeout
preprocess → inference → postprocess   the tensor `context`: the seal, then these fields as JSON
"""

import json
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract import VERBS, Model, Options, Verb, check_parameters
from sie_triton.contract.tensors import CONTEXT
from sie_triton.errors import InputError
from sie_triton.scheduling.job import NEVER, deadline_ns
from sie_triton.stages.request import Request, vector
from sie_triton.stages.seal import SEAL_BYTES, Seal, Tensors


@dataclass(slots=True)
class Context:
    """`options`: the checked parameters that later steps read, over what the profile says. Times are monotonic ns.

    `num_items`: what the client sent as items. `ticket`: see records.tickets. Of the durations that inference adds,
    `queue_ns` is the wait in which it was busy with other work, `batch_wait_ns` the wait in which it was idle.
    """

    verb: Verb
    options: dict[str, Any]
    num_items: int = 0
    id: str = ""
    trace: str = ""
    arrived_ns: int = 0
    deadline_ns: int = NEVER
    preprocessed_ns: int = 0
    ticket: int = 0
    queue_ns: int = 0
    batch_wait_ns: int = 0
    inference_ns: int = 0

    def to_json(self) -> bytes:
        return json.dumps(
            [self.verb.name, self.options, self.id, self.trace, *(getattr(self, n) for n in NUMBERS)]
        ).encode()

    @classmethod
    def from_json(cls, text: bytes) -> "Context":
        """ValueError where it is none."""
        verb, options, name, trace, *numbers = json.loads(text)
        texts_fit = isinstance(name, str) and isinstance(trace, str) and isinstance(options, dict)
        if not texts_fit or not all(type(each) is int for each in numbers):
            raise ValueError("a context has other fields")
        return cls(VERBS[verb], options, id=name, trace=trace, **dict(zip(NUMBERS, numbers, strict=True)))


NUMBERS = (
    "num_items",
    "arrived_ns",
    "deadline_ns",
    "preprocessed_ns",
    "ticket",
    "queue_ns",
    "batch_wait_ns",
    "inference_ns",
)


class Contexts:
    """Makes, reads and writes the contexts of one model's requests; for all threads of a stage."""

    def __init__(self, model: Model, seal: Seal) -> None:
        self._seal = seal
        self._spec = model.spec
        self._parameters = {name: VERBS[name].all_parameters(model) for name in model.spec.tasks}

    def enter(self, request: Request, verb: Verb, arrived_ns: int) -> tuple[Context, Options]:
        """For a request of a client, and its checked parameters; InputError names the one that is wrong."""
        parameters = self._parameters[verb.name]
        given = check_parameters(request.parameters, parameters)
        options = verb.options(given, self._spec.profile(str(given.get("profile", "default"))), parameters)
        deadline = deadline_ns(arrived_ns, request.timeout_us)
        return Context(verb, options, 0, request.id, request.trace, arrived_ns, deadline), given

    def read(self, request: Request, tensors: Tensors) -> Context:
        """What the step before sent beside `tensors`; InputError where it did not."""
        return self._parsed(self._seal.opened(vector(request, CONTEXT.name, np.uint8), tensors))

    def peek(self, request: Request) -> Context | None:
        """The same before the tensors are looked at, with nothing checked; None where it cannot be read."""
        try:
            return self._parsed(vector(request, CONTEXT.name, np.uint8)[SEAL_BYTES:].tobytes())
        except InputError:
            return None

    def write(self, context: Context, tensors: Tensors) -> npt.NDArray[np.uint8]:
        """For the next step, beside `tensors`: both give them in the same order."""
        return self._seal.sealed(context.to_json(), tensors)

    def _parsed(self, text: bytes) -> Context:
        try:
            context = Context.from_json(text)
            parameters = self._parameters[context.verb.name]
        except (ValueError, KeyError, TypeError) as exc:
            raise InputError("context: must be as the step before writes it") from exc
        if self._seal.is_open:
            context.options = check_parameters(context.options, parameters)
        return context


def timing_ms(context: Context, started_ns: int) -> npt.NDArray[np.float32]:
    """The `timing_ms` output, float32 [6], for a postprocess that began at `started_ns`."""
    now = monotonic_ns()
    parts = [
        context.queue_ns,
        context.preprocessed_ns - context.arrived_ns,
        context.batch_wait_ns,
        context.inference_ns,
        now - started_ns,
        now - context.arrived_ns,
    ]
    return np.array(parts, np.float64).astype(np.float32) / np.float32(1e6)
