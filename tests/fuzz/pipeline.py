"""The three steps of a model in this process: its real stages, and rows of zeros in place of a forward pass."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns
from typing import Any

import numpy as np

from sie_triton.contract import Rows, Verb
from sie_triton.contract.spec import ModelSpec, MuveraConfig, Profile, Runtime
from sie_triton.contract.tensors import NUMPY_DTYPES, lengths_of
from sie_triton.errors import SIEError
from sie_triton.models.catalog import recognise
from sie_triton.models.families import model_of
from sie_triton.models.families.gliner2.checked import LIMITS
from sie_triton.models.families.gliner2.tensors import CLASS_SCORES
from sie_triton.pipeline.scheduling.job import rows_of
from sie_triton.pipeline.stages.inference_job import BusyLog, InferenceCodec, InferenceJob
from sie_triton.pipeline.stages.message import Seal
from sie_triton.pipeline.stages.open_requests import OpenRequest
from sie_triton.pipeline.stages.postprocess import Postprocess
from sie_triton.pipeline.stages.preprocess import Preprocess
from sie_triton.pipeline.worker.messages import Loaded
from sie_triton.records.status import StatusWriter
from sie_triton.records.traffic import TrafficWriter
from tests.support.stages import FakeRequest, open_requests

Outputs = Mapping[str, Any]

# Limits that make a case quick; what is checked against them is the same.
RUNTIME = Runtime(max_image_pixels=1_000_000, max_audio_s=30.0, max_pages=4, preprocessor_workers=2)

# Rows of an item in a ragged tensor, and width of one that the model's file does not tell.
NUM_ROWS, WIDTH = 1, 3

# Names of so many classes, for models that name their own.
NAMES = b'["a"]'

MUVERA = MuveraConfig(num_repetitions=2, num_simhash_projections=2, final_projection_dim=None)


class Pipeline:
    """A model's steps."""

    def __init__(self, spec: ModelSpec, directory: Path) -> None:
        self.spec, self.model = spec, model_of(spec)
        directory.mkdir()
        self.preprocess = Preprocess(spec, StatusWriter(directory, "m", "preprocess", 0))
        # Preprocess would refuse requests of which inference has taken none.
        self._taken = StatusWriter(directory, "m", "inference", 0)
        self.preprocess.warm_up()
        self.codec = InferenceCodec(spec, Seal(directory))
        self.postprocess = Postprocess(spec, Seal(directory), TrafficWriter.private())
        self.loaded = Loaded({"input_ids": 1 << 20}, spec.max_sequence_length, 1, 0)

    def close(self) -> None:
        self.preprocess.close()
        self.postprocess.close()

    def features(self, verb: Verb, parameters: Mapping[str, Any], inputs: Outputs, timeout_us: int = 0) -> Outputs:
        """Return what preprocess makes of a request; raise its error."""
        named = {f"{verb.name}_{name}": array for name, array in inputs.items()}
        return answer_of(self.preprocess, FakeRequest(parameters, timeout_us, **named))

    def rows(self, features: Outputs) -> Outputs:
        """Return what inference hands on for these features; raise its error."""
        return self.rows_of(request_of(features))

    def rows_of(self, request: FakeRequest) -> Outputs:
        work = self.codec.read(OpenRequest(request, open_requests()), self.loaded)
        self._taken.raise_to(highest_ticket=work.context.ticket)
        work.rows = self._rows(work)
        work.ran.append((monotonic_ns(), monotonic_ns()))
        self.codec.collect(work)
        if work.error is not None:
            raise work.error
        return self.codec.write(work, BusyLog(), BusyLog())

    def answer(self, verb: Verb, parameters: Mapping[str, Any], inputs: Outputs, timeout_us: int = 0) -> Outputs:
        """Return the outputs of a request; raise the error of the step that refuses it."""
        features = self.features(verb, parameters, inputs, timeout_us)
        passed_on = {
            verb.input_name(tensor): inputs[tensor.name]
            for tensor in verb.passed_on(self.model)
            if tensor.name in inputs
        }
        tensors = {name: array[None] for name, array in self.rows(features).items()}
        return answer_of(self.postprocess, FakeRequest(**tensors, **passed_on))

    def _rows(self, work: InferenceJob) -> list[Rows]:
        """Return a row for each element of `work`: zeros, and names of classes."""
        computed, num = work.context.verb.computed(self.model), work.num_items
        made: Rows = {}
        for tensor in computed:
            if tensor.dtype == "UINT8":
                values = np.frombuffer(num * NAMES, np.uint8)
            else:
                width = [self._width(tensor.name) if dim < 0 else dim for dim in tensor.dims[1:]]
                num_rows = num * self._rows_per_item(tensor.name) if tensor.lengths else num
                values = np.zeros([num_rows, *width], NUMPY_DTYPES[tensor.dtype])
            made[tensor.name] = values
        ragged = lengths_of(computed)
        for name, lengths in ragged.items():
            made[lengths] = np.full(num, len(made[name]) // num, np.int32)
        return rows_of(made, num, ragged)

    def _rows_per_item(self, name: str) -> int:
        if name == CLASS_SCORES.name:
            return LIMITS.max_classes
        # A finding needs a label, which a request may lack where they are optional.
        return 0 if self.model.extraction.labels == "optional" else NUM_ROWS

    def _width(self, name: str) -> int:
        return self.spec.dims.get(name, WIDTH)


def request_of(answer: Outputs) -> FakeRequest:
    """Return the request to the next step that Triton makes of a step's answer."""
    return FakeRequest(**{name: array[None] for name, array in answer.items()})


def answer_of(stage: Any, request: FakeRequest) -> Outputs:
    (answer,) = stage.execute([request])
    found = request.response(answer)
    if isinstance(found, SIEError):
        raise found
    return found


# Directories of saved models, and tasks of each.
MODELS = {
    "bge-m3": "bge_m3/model",
    "cross-encoder": "cross_encoder/model",
    "gliner": "gliner/model",
    "gliner2": "gliner2/model",
    "gliclass": "gliclass",
    "glirel": "glirel/model",
    "classifier": "classifier",
    "clip": "clip",
    "clap": "clap",
    "colbert": "pylate/model",
}


@contextmanager
def pipelines(models: Path, scratch: Path, *names: str) -> Iterator[dict[str, Pipeline]]:
    """Yield pipelines of saved models by name, all without `names`."""
    made: dict[str, Pipeline] = {}
    try:
        for name in names or MODELS:
            made[name] = Pipeline(spec_of(models / MODELS[name], name), scratch / name)
        yield made
    finally:
        for each in made.values():
            each.close()


def spec_of(directory: Path, name: str) -> ModelSpec:
    """Return the specification of a saved model, with a second profile, and MUVERA where it fits."""
    spec = recognise(directory, f"org/{name}", {"weights_path": str(directory)}).resolve(RUNTIME)
    spec = replace(spec, profiles=(*spec.profiles, Profile("other")))
    if "multivector" not in spec.dims:
        return spec
    return replace(spec, muvera=MUVERA, dims={**spec.dims, "muvera": MUVERA.dim(spec.dims["multivector"])})
