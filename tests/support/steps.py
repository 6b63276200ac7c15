"""The three stages of a model in this process: from clients' requests to what they get, in one forward pass."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from sie_triton.contract.spec import Runtime
from sie_triton.errors import SIEError
from sie_triton.models.catalog import recognise
from sie_triton.pipeline.scheduling.job import items_of, pack, settle
from sie_triton.pipeline.stages.inference_job import BusyLog, InferenceCodec
from sie_triton.pipeline.stages.message import Seal
from sie_triton.pipeline.stages.open_requests import OpenRequest
from sie_triton.pipeline.stages.postprocess import Postprocess
from sie_triton.pipeline.stages.preprocess import Preprocess
from sie_triton.pipeline.worker.messages import Loaded
from sie_triton.records.status import StatusWriter
from sie_triton.records.traffic import TrafficWriter
from tests.support.loading import load_adapter, with_tokenizers
from tests.support.stages import FakeRequest, asked, open_requests, run


class Steps:
    """The model in `directory`; `scratch` holds the stages' files, `usual` are the profile's parameters."""

    def __init__(self, scratch: Path, directory: Path, **usual: Any) -> None:
        spec = recognise(directory, "m", {"weights_path": str(directory)}).resolve(Runtime())
        profile = replace(spec.profiles[0], parameters={**spec.profiles[0].parameters, **usual})
        spec = replace(spec, profiles=(profile,))
        self._preprocess = Preprocess(spec, StatusWriter(scratch, "m", "preprocess", 0))
        self._codec = InferenceCodec(spec, Seal(scratch))
        self._postprocess = Postprocess(spec, Seal(scratch), TrafficWriter.private())
        self._adapter = load_adapter(spec, with_tokenizers(spec, directory))
        self._loaded = Loaded(self._adapter.limits, spec.max_sequence_length, 1, 0)

    def encode(self, requests: Sequence[tuple[Sequence[str], Mapping[str, Any]]]) -> list[Any]:
        """Encode texts, each request with its parameters. The items of all take turns in one pass."""
        sent = [asked("encode", parameters, text=list(texts)) for texts, parameters in requests]
        read = [request.response(direct) for request, direct in zip(sent, self._preprocess.execute(sent), strict=True)]
        if any(isinstance(each, SIEError) for each in read):
            return read
        jobs = [self._codec.read(OpenRequest(_request(each), open_requests()), self._loaded) for each in read]
        turns = zip_longest(*(items_of([job]) for job in jobs))
        items = [item for item in chain.from_iterable(turns) if item is not None]
        settle(items, self._adapter.forward(pack(items)), (1, 2), self._codec.ragged)
        for job in jobs:
            self._codec.collect(job)
            assert job.error is None, job.error
        return run(self._postprocess, [_request(self._codec.write(job, BusyLog(), BusyLog())) for job in jobs])


def _request(answer: Mapping[str, Any]) -> FakeRequest:
    return FakeRequest(**{name: array[None] for name, array in answer.items()})
