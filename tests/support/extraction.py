"""Extraction by a family without a server: everything between a client's tensors and the JSON it gets."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sie_triton.contract.spec import Profile
from sie_triton.contract.tensors import EXTRACTION
from sie_triton.models.families import family
from sie_triton.pipeline.worker.__main__ import sampler_of
from tests.support.items import Served


class Extractor:
    """A family's processor and adapter over the weights in `directory`."""

    def __init__(self, name: str, directory, profile: Profile | None = None, **changes: Any) -> None:
        usual = {"inputs": ("text",), "dims": {}, "tasks": ("extract",), "profiles": (profile or Profile(),)}
        self._served = Served(name, directory, **{**usual, **changes})
        self.spec, self.model = self._served.spec, self._served.model
        self.processor, self.adapter = self._served.processor, self._served.adapter
        if not family(name).generates:
            self.adapter.forward(sampler_of(self.spec, self.adapter).batch(8))  # as a worker that calibrates

    def __call__(self, texts: Sequence[str], labels: Sequence[str] = (), **given: Any) -> list[dict[str, Any]]:
        """Extract from texts. `given`: request parameters, `lora` among them, and `entities`, a list of dicts for each
        text.
        """
        return self.together([(texts, labels, given)])[0]

    def together(self, requests: Sequence[tuple[Sequence[str], Sequence[str], Mapping[str, Any]]]) -> list[Any]:
        """Results of several requests whose items share a forward pass."""
        answers = self._served.together("extract", [_sent(*each) for each in requests])
        return [[json.loads(each) for each in outputs[EXTRACTION.name]] for outputs in answers]

    def asked(self, texts, labels, **given):
        return self._served.asked("extract", *_sent(texts, labels, given))


def _sent(texts, labels, given):
    sent = {"text": [text.encode() for text in texts], "labels": [label.encode() for label in labels]}
    sent["entities"] = [json.dumps(each).encode() for each in given.get("entities") or ()]
    others = {name: value for name, value in given.items() if name != "entities"}
    return {name: each for name, each in sent.items() if each}, others
