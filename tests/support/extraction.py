"""Extraction by a family without a server: everything between a client's tensors and the JSON it gets."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sie_triton.contract import VERBS, Batch, Computed
from sie_triton.contract.spec import ANY_LENGTH, Profile
from sie_triton.contract.tensors import EXTRACTION, lengths_of
from sie_triton.models.families import family, fitted, load_processor, model_of
from sie_triton.models.inputs import KIND_OF, kind_of
from sie_triton.models.inputs.features import join, num_pieces
from sie_triton.models.inputs.request_parts import Framed, blame, features_of
from sie_triton.pipeline.scheduling.job import rows_of
from sie_triton.pipeline.stages.checks import check_features
from sie_triton.pipeline.stages.tokenizer_files import naming
from sie_triton.pipeline.worker.__main__ import sampler_of
from tests.support.loading import load_adapter, with_tokenizers
from tests.support.stages import spec

VERB = VERBS["extract"]


class Extractor:
    """A family's processor and adapter over the weights in `directory`."""

    def __init__(self, name: str, directory, profile: Profile | None = None, **changes: Any) -> None:
        profiles = (profile or Profile(),)
        usual = {"dims": {}, "tasks": ("extract",), "max_sequence_length": ANY_LENGTH, "profiles": profiles}
        engine = family(name).default_engine
        self.spec = fitted(spec(family=name, engine=engine, **{**usual, **changes}), directory)
        self.model = model_of(self.spec)
        made = with_tokenizers(self.spec, directory)
        with naming(directory, made):
            self.processor = load_processor(self.spec, made)
            self.adapter = load_adapter(self.spec, made)
        if not family(name).generates:
            self.adapter.forward(sampler_of(self.spec, self.adapter).batch(8))  # as a worker that calibrates

    def __call__(self, texts: Sequence[str], labels: Sequence[str] = (), **given: Any) -> list[dict[str, Any]]:
        """Extract from texts. `given`: request parameters, `lora` among them, and `entities`, a list of dicts for each
        text.
        """
        return self.together([(texts, labels, given)])[0]

    def together(self, requests: Sequence[tuple[Sequence[str], Sequence[str], Mapping[str, Any]]]) -> list[Any]:
        """Results of several requests whose items share a forward pass."""
        read = [self._read(*request) for request in requests]
        features = features_of(self.processor, [asked for asked, _, _ in read])
        counts = [num_pieces(each, len(texts)) for each, (texts, _, _) in zip(features, requests, strict=True)]
        options = [options for (_, options, _), count in zip(read, counts, strict=True) for _ in range(count.sum())]
        whole = join(features)
        check_features(whole, self.model.features, self.spec.max_sequence_length, self.adapter.limits)
        named = [given.get("lora", "") for _, _, given in requests]
        loras = [name for name, count in zip(named, counts, strict=True) for _ in range(count.sum())]
        batch = Batch(whole, np.zeros(len(options), np.bool_), frozenset(), options, loras)
        with self.adapter.encoder.adapted(loras):
            rows = rows_of(self.adapter.forward(batch), len(options), lengths_of(VERB.computed(self.model)))
        answers, start = [], 0
        for count, (_, given, sent) in zip(counts, read, strict=True):
            end = start + int(count.sum())
            tensors = VERB.collect(self.model, given, rows[start:end], count)
            outputs = VERB.answering(self.model).outputs(Computed(given, {**tensors, **sent}))
            answers.append([json.loads(each) for each in outputs[EXTRACTION.name]])
            start = end
        return answers

    def blame(self, texts, labels, **given):
        """InputError for what `features_of` could not read."""
        blame(self.processor, self._read(texts, labels, given)[0])

    def _read(self, texts, labels, given):
        known = given.get("entities")
        sent = {
            "text": [text.encode() for text in texts],
            "labels": [label.encode() for label in labels],
            "entities": [] if known is None else [json.dumps(each).encode() for each in known],
        }
        arrays = {name: np.array(each, np.object_) for name, each in sent.items()}
        tensors = {tensor.name: tensor for tensor in VERB.inputs(self.spec.inputs)}
        elements = {
            name: KIND_OF[name].read(arrays[name][None], tensor) if len(arrays[name]) else []
            for name, tensor in tensors.items()
        }
        given = {name: value for name, value in given.items() if name not in ("entities", "lora")}
        profile = self.spec.profiles[0]
        parts = VERB.read(elements, given, profile, self.model)
        asked = [Framed(part, self.processor.frame(part), kind_of(self.spec.inputs)) for part in parts]
        return asked, {**profile.parameters, **given}, arrays
