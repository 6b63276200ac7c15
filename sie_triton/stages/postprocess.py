"""inference → postprocess → client: transforms the request asked for, and the timing."""

from collections.abc import Sequence
from time import monotonic_ns

import numpy as np

from sie_triton.contract import DENSE, STAMPS, TIMING_MS, check_parameters
from sie_triton.errors import InputError, SIEError
from sie_triton.parameters import model_parameters
from sie_triton.spec import ModelSpec
from sie_triton.stages.request import Answer, Outputs, Request, vector
from sie_triton.stages.stage import internal_error
from sie_triton.stages.timing import INFERENCE_STAMPS, timing_ms
from sie_triton.transforms import normalize, truncate


class Postprocess:
    """Needs nothing loaded: never cold, never defers."""

    name = "postprocess"

    def __init__(self, spec: ModelSpec) -> None:
        self._parameters = model_parameters(spec)
        self._normalize = spec.normalize

    def execute(self, requests: Sequence[Request]) -> list[Answer]:
        return [self._answer(request) for request in requests]

    def close(self) -> None:
        pass

    def _answer(self, request: Request) -> Answer:
        try:
            return self._outputs(request)
        except SIEError as exc:
            return exc
        except Exception as exc:
            return internal_error(self.name, exc)

    def _outputs(self, request: Request) -> Outputs:
        started = monotonic_ns()
        options = check_parameters(request.parameters, self._parameters)
        stamps = vector(request, STAMPS.name, np.int64)
        if stamps.shape != (INFERENCE_STAMPS,):
            raise InputError(f"stamps: must be {INFERENCE_STAMPS} integers, as inference writes them")
        dense = request.tensor(DENSE.name)
        if dense is None or dense.ndim != 3 or dense.shape[0] != 1:
            raise InputError("dense: must have shape [1, n, dim]")
        dense = dense[0]
        if "dimensions" in options:
            dense = truncate(dense, int(options["dimensions"]))
        if options.get("normalize", self._normalize):
            dense = normalize(dense)
        return {DENSE.name: dense, TIMING_MS.name: timing_ms(stamps, started)}
