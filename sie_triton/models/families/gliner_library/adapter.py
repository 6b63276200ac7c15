"""Texts and labels through the library gliner."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.checkpoints.files import first_line
from sie_triton.contract import Batch, Features, ParameterValue, Ragged, Rows
from sie_triton.contract.spec import AUTO, ModelSpec
from sie_triton.contract.tensors import READ
from sie_triton.engines import Engine
from sie_triton.engines.base import Encoder
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.gliner import choice
from sie_triton.models.families.gliner_library import ASKED, PACKAGES
from sie_triton.models.families.shared.labels.spans import SPAN_LENGTHS, SPAN_SCORES, SPANS
from sie_triton.models.families.shared.thresholds import least_score, least_scores

MOST_READ = 2**31 - 1
SAMPLE = json.dumps(["Ada lived in London.", ["person"], [None]]).encode()


class GlinerLibraryAdapter(Adapter):
    def __init__(self, model: Any) -> None:
        super().__init__(Encoder(), limits={READ.name: MOST_READ})
        self.weights_bytes = sum(each.numel() * each.element_size() for each in model.model.parameters())
        self._model = model
        self.sample = _sample

    def forward(self, batch: Batch) -> Rows:
        asked, lengths = batch.features[ASKED.name]
        assert lengths is not None
        items = [json.loads(each.tobytes()) for each in np.split(asked, np.cumsum(lengths)[:-1])]
        found = [self._library_results(item, options) for item, options in zip(items, batch.options, strict=True)]
        spans = [(each["start"], each["end"], label) for of_item in found for each, label in of_item]
        scores = [each["score"] for of_item in found for each, _ in of_item]
        return {
            SPANS.name: np.array(spans, np.int32).reshape(-1, 3),
            SPAN_SCORES.name: np.array(scores, np.float32),
            SPAN_LENGTHS.name: np.array(list(map(len, found)), np.int32),
        }

    def _library_results(self, asked: Any, options: Mapping[str, ParameterValue]) -> list[tuple[dict[str, Any], int]]:
        """Return the library's results, each with the number of its label; `asked` is an item of ASKED."""
        text, labels, thresholds = asked
        if not text.strip():
            return []
        own = np.array([np.nan if each is None else each for each in thresholds], np.float32)
        least = least_scores(own, options)
        by = choice(options)
        (found,) = self._model.inference(
            [text],
            labels,
            threshold=float(least.min(initial=least_score(options))),
            flat_ner=by["flat"],
            multi_label=by["multi_label"],
        )
        numbered = [(each, labels.index(each["label"])) for each in found]
        return [(each, label) for each, label in numbered if each["score"] >= least[label]]


def _sample(lengths: Sequence[int]) -> Features:
    asked = np.frombuffer(SAMPLE * len(lengths), np.uint8)
    return {
        READ.name: Ragged(np.array(lengths, np.int32)),
        ASKED.name: Ragged(asked, np.full(len(lengths), len(SAMPLE), np.int32)),
    }


def load_adapter(spec: ModelSpec, directory: Path, engine: Engine) -> GlinerLibraryAdapter:
    """Load the model; raise LoadError if the library is not installed, or cannot read the directory."""
    if (backend := spec.runtime.attention_backend) != AUTO:
        raise LoadError(
            f"SIE_ATTENTION_BACKEND={backend} cannot be used for this model: the library gliner chooses its attention; "
            "use auto",
            "unsupported",
        )
    try:
        from gliner import GLiNER
    except ImportError as exc:
        raise LoadError(
            f"gliner is not installed ({exc}); run sie-triton env add gliner {PACKAGES}, or name another environment "
            "in the model file",
            "dependency",
        ) from exc
    try:
        model = GLiNER.from_pretrained(str(directory), local_files_only=True)
    except Exception as exc:  # the library may raise anything
        raise LoadError(f"{directory}: gliner cannot load it: {first_line(exc)}", "corrupt") from exc
    return GlinerLibraryAdapter(model.eval())
