"""Extraction by a family without a server: everything between a client's items and the results it gets."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.contract import Batch, Features
from sie_triton.contract.spec import Profile
from sie_triton.contract.tensors import EXTRACTION
from sie_triton.models.families import family
from sie_triton.models.inputs.request_parts import blame, features_of
from sie_triton.pipeline.worker.__main__ import sampler_of
from tests.support.items import Sent, Served

# Items, labels and parameters, among them `lora` and `entities`, a list of dicts for each item.
Request = tuple[Sequence[str | bytes], Sequence[str], Mapping[str, Any]]


class Extractor(Served):
    """A family's processor and adapter over the weights in `directory`, for one kind of items."""

    def __init__(self, name: str, directory: Path, profile: Profile | None = None, **changes: Any) -> None:
        usual = {"inputs": ("text",), "dims": {}, "tasks": ("extract",), "profiles": (profile or Profile(),)}
        super().__init__(name, directory, **{**usual, **changes})
        if not family(name).generates:
            self.adapter.forward(sampler_of(self.spec, self.adapter).batch(8))  # as a worker that calibrates

    def __call__(self, items: Sequence[str | bytes], labels: Sequence[str] = (), **given: Any) -> list[Any]:
        return self.extract([(items, labels, given)])[0]

    def extract(self, requests: Sequence[Request]) -> list[list[Any]]:
        """Results of several requests whose items share a forward pass."""
        answers = self.together("extract", [self._sent(*request) for request in requests])
        return [[json.loads(each) for each in answer[EXTRACTION.name]] for answer in answers]

    def features(self, items: Sequence[str], labels: Sequence[str], **given: Any) -> Features:
        (found,) = features_of(self.processor, [self.asked("extract", *self._sent(items, labels, given))])
        return found

    def blame(self, items: Sequence[str], labels: Sequence[str], **given: Any) -> None:
        """InputError for what `features_of` could not read."""
        blame(self.processor, self.asked("extract", *self._sent(items, labels, given)))

    def check_sample(self, lengths: list[int]) -> None:
        """Assert that a sample for calibration has results for each of its items."""
        sample = family(self.spec.family).sample(lengths)
        batch = Batch(sample, np.zeros(len(lengths), np.bool_), frozenset(), [{}] * len(lengths))
        rows, computed = self.adapter.forward(batch), self.model.extraction.computed
        assert {len(rows[tensor.lengths]) for tensor in computed if tensor.lengths} == {len(lengths)}

    def _sent(self, items: Any, labels: Sequence[str], given: Mapping[str, Any]) -> tuple[Sent, dict[str, Any]]:
        (kind,) = self.spec.inputs
        sent = {
            kind: [item.encode() if isinstance(item, str) else item for item in items],
            "labels": [label.encode() for label in labels],
            "entities": [json.dumps(each).encode() for each in given.get("entities") or ()],
        }
        return sent, {name: value for name, value in given.items() if name != "entities"}
