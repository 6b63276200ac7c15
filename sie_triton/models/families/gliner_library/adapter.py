"""Texts and labels through the library gliner."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sie_triton.checkpoints.files import first_line
from sie_triton.contract import Batch, Features, ParameterValue, Ragged, Rows
from sie_triton.contract.arrays import Floats, Ints
from sie_triton.contract.spec import AUTO, ModelSpec
from sie_triton.contract.tensors import READ
from sie_triton.engines import Engine
from sie_triton.engines.base import Encoder
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.gliner import choice
from sie_triton.models.families.gliner_library import ASKED, PACKAGES, relation_labels
from sie_triton.models.families.gliner_library.candidates import bound_candidates
from sie_triton.models.families.glirel import RELATION_SCORES, RELATIONS
from sie_triton.models.families.shared.labels.spans import SPAN_LENGTHS, SPAN_SCORES, SPANS
from sie_triton.models.families.shared.thresholds import least_score, least_scores

MOST_READ = 2**31 - 1
SAMPLE = json.dumps(["Ada lived in London.", ["person"], [None]]).encode()


class GlinerLibraryAdapter(Adapter):
    def __init__(self, model: Any) -> None:
        super().__init__(Encoder(), limits={READ.name: MOST_READ})
        self.weights_bytes = sum(each.numel() * each.element_size() for each in model.model.parameters())
        self._model = model
        self._finds_relations = getattr(model.config, "relations_layer", None) is not None
        if self._finds_relations:
            bound_candidates(model.model)
        self.sample = _sample

    def forward(self, batch: Batch) -> Rows:
        asked, lengths = batch.features[ASKED.name]
        assert lengths is not None
        items = [json.loads(each.tobytes()) for each in np.split(asked, np.cumsum(lengths)[:-1])]
        found = [self._library_results(item, options) for item, options in zip(items, batch.options, strict=True)]
        spans, span_scores, span_lengths = _together([each.entities for each in found], 3)
        relations, relation_scores, relation_lengths = _together([each.relations for each in found], 7)
        return {
            SPANS.name: spans,
            SPAN_SCORES.name: span_scores,
            SPAN_LENGTHS.name: span_lengths,
            RELATIONS.name: relations,
            RELATION_SCORES.name: relation_scores,
            RELATIONS.lengths: relation_lengths,
        }

    def _library_results(self, asked: Any, options: Mapping[str, ParameterValue]) -> "LibraryResults":
        """Return the library's results; `asked` is an item of ASKED."""
        text, labels, thresholds = asked
        if not text.strip():
            return LibraryResults([], [])
        own = np.array([np.nan if each is None else each for each in thresholds], np.float32)
        least = least_scores(own, options)
        by, wanted = choice(options), relation_labels(options)
        arguments = {
            "threshold": float(least.min(initial=least_score(options))),
            "flat_ner": by["flat"],
            "multi_label": by["multi_label"],
        }
        least_of = {each.read: least_score(options) if each.threshold is None else each.threshold for each in wanted}
        if wanted:
            arguments |= {"relations": list(least_of), "relation_threshold": min(least_of.values())}
            (found,), (related,) = self._model.inference([text], labels, **arguments)
        else:
            arguments |= {"return_relations": False} if self._finds_relations else {}
            (found,), related = self._model.inference([text], labels, **arguments), []
        numbers = [labels.index(each["label"]) for each in found]
        is_kept = [each["score"] >= least[number] for each, number in zip(found, numbers, strict=True)]
        entities = [
            ((each["start"], each["end"], number), each["score"])
            for each, number, keep in zip(found, numbers, is_kept, strict=True)
            if keep
        ]
        relations = [
            (_relation(each, list(least_of).index(each["relation"])), each["score"])
            for each in related
            if each["score"] >= least_of[each["relation"]]
            and is_kept[each["head"]["entity_idx"]]
            and is_kept[each["tail"]["entity_idx"]]
        ]
        return LibraryResults(entities, relations)


class LibraryResults(NamedTuple):
    """Entities and relations of one text: the row of each, as in SPANS and RELATIONS, and its score."""

    entities: list[tuple[tuple[int, ...], float]]
    relations: list[tuple[tuple[int, ...], float]]


def _relation(found: Mapping[str, Any], label: int) -> tuple[int, ...]:
    head, tail = found["head"], found["tail"]
    places = (head["start"], head["end"], tail["start"], tail["end"])
    return (head["entity_idx"], tail["entity_idx"], *places, label)


def _together(found: Sequence[Sequence[tuple[tuple[int, ...], float]]], width: int) -> tuple[Ints, Floats, Ints]:
    """Return the rows of all texts, their scores, and the number of rows of each text."""
    rows = [each for of_text in found for each in of_text]
    values = np.array([row for row, _ in rows], np.int32).reshape(-1, width)
    return values, np.array([score for _, score in rows], np.float32), np.array(list(map(len, found)), np.int32)


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
    if getattr(model.config, "triples_layer", None):
        message = f"{directory}: gliner_config.json: triples_layer: models that score triples cannot be served"
        raise LoadError(message, "unsupported")
    return GlinerLibraryAdapter(model.eval())
