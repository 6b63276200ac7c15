"""Encoding by a family without a server: everything between a client's items and the output tensors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.client.items import encoded
from sie_triton.contract import VERBS, Batch, Computed
from sie_triton.contract.spec import ANY_LENGTH, Runtime
from sie_triton.contract.tensors import lengths_of
from sie_triton.models.catalog import recognise
from sie_triton.models.families import family, fitted, load_processor, model_of
from sie_triton.models.inputs import KIND_OF, kind_of
from sie_triton.models.inputs.features import join, num_pieces
from sie_triton.models.inputs.pdf_pages import PageReader, PageSelection
from sie_triton.models.inputs.request_parts import Framed, RequestParts, features_of
from sie_triton.pipeline.scheduling.job import rows_of
from sie_triton.pipeline.stages.checks import check_features
from sie_triton.pipeline.stages.preparing import Preparation
from sie_triton.pipeline.stages.tokenizer_files import naming
from tests.support.loading import load_adapter, with_tokenizers
from tests.support.stages import FREE_SLOTS, spec

# What items are called where the verb has other inputs too.
Sent = Mapping[str, Sequence[bytes]]


class Served:
    """A family's processor and adapter over the weights in `directory`; `changes` are fields of the ModelSpec."""

    def __init__(self, name: str, directory, **changes: Any) -> None:
        usual = {"inputs": ("text", "image"), "max_sequence_length": ANY_LENGTH, "engine": family(name).default_engine}
        self.spec = fitted(spec(family=name, **{**usual, **changes}), directory)
        self.model = model_of(self.spec)
        made = with_tokenizers(self.spec, directory)
        with naming(directory, made):
            self.processor = load_processor(self.spec, made)
            self.adapter = load_adapter(self.spec, made)

    def encode(self, items: Sequence[Any], **given: Any) -> dict[str, np.ndarray]:
        return self.together("encode", [(encoded(items), given)])[0]

    @contextmanager
    def padded(self) -> Iterator[None]:
        """Encode by the path that pads rows, not by the one that packs them."""
        self.adapter.encoder.use("padded")
        try:
            yield
        finally:
            self.adapter.encoder.use("packed")

    def together(self, verb_name: str, requests: Sequence[tuple[Sent, Mapping[str, Any]]]) -> list[dict[str, Any]]:
        """The outputs of several requests whose items share one forward pass."""
        verb = VERBS[verb_name]
        named = [given.get("lora", "") for _, given in requests]
        requests = [(sent, {key: each for key, each in given.items() if key != "lora"}) for sent, given in requests]
        read = [self.asked(verb_name, *request) for request in requests]
        usual = self.spec.profiles[0].parameters
        features = features_of(self.processor, read)
        num_elements = [sum(len(framed.part.elements) for framed in asked) for asked in read]
        num_items = [len(asked[0].part.elements) for asked in read]
        counts = [num_pieces(each, count) for each, count in zip(features, num_elements, strict=True)]
        whole = join(features)
        check_features(whole, self.model.features, self.spec.max_sequence_length, self.adapter.limits)
        each_of = [i for i, count in enumerate(counts) for _ in range(count.sum())]
        options, loras = [{**usual, **requests[i][1]} for i in each_of], [named[i] for i in each_of]
        is_query = [
            each
            for elements, items, (_, given) in zip(num_elements, num_items, requests, strict=True)
            for each in verb.is_query(given, elements, items)
        ]
        wanted = frozenset().union(*(verb.needed(self.model, given) for _, given in requests))
        with self.adapter.encoder.adapted(loras) if any(loras) else nullcontext():
            result = self.adapter.forward(Batch(whole, np.array(is_query), wanted, options, loras))
        rows, answers, start = rows_of(result, len(options), lengths_of(verb.computed(self.model))), [], 0
        for count, (sent, given) in zip(counts, requests, strict=True):
            end = start + int(count.sum())
            tensors = verb.collect(self.model, given, rows[start:end], count)
            passed_on = {t.name: arrays(sent)[t.name] for t in verb.passed_on(self.model) if t.name in sent}
            computed, answering = Computed({**usual, **given}, {**tensors, **passed_on}), verb.answering(self.model)
            answering.prepare([computed])
            answers.append(dict(answering.outputs(computed)))
            start = end
        return answers

    def asked(self, verb_name: str, sent: Sent, given: Mapping[str, Any]) -> RequestParts:
        """Read and prepare items; InputError names the faulty item."""
        verb, profile = VERBS[verb_name], self.spec.profiles[0]
        found = arrays({name: values for name, values in sent.items() if len(values)})
        tensors = verb.inputs(self.spec.inputs)
        elements = {t.name: KIND_OF[t.name].read(found[t.name][None] if t.name in found else None, t) for t in tensors}
        parts = verb.read(elements, given, profile, self.model)
        asked = [Framed(part, self.processor.frame(part), kind_of(self.spec.inputs)) for part in parts]
        done: list[RequestParts] = []
        reader = PageReader(PageSelection.read(str(given.get("pages", ""))), 100, 1 << 26)
        made = Preparation(
            self.processor, asked, reader, lambda: False, lambda asked, _: done.append(asked), FREE_SLOTS
        )
        (strand,) = made.strands(1)
        list(strand)
        return done[0]


class Recognised(Served):
    """The processor and adapter of a directory as it is recognised, without a model file."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        found = recognise(directory, "m", {"weights_path": str(directory)}).resolve(Runtime())
        usual = {name: getattr(found, name) for name in ("inputs", "dims", "profiles", "max_sequence_length")}
        super().__init__(found.family, directory, **{**usual, **changes})


def arrays(sent: Sent) -> dict[str, np.ndarray]:
    return {name: np.array(list(values), np.object_) for name, values in sent.items()}
