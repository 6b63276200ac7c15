"""Texts and labels through the library gliner."""

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sie_triton.checkpoints.files import first_line
from sie_triton.contract import Batch, Features, Label, ParameterValue, Ragged, Rows
from sie_triton.contract.arrays import Floats, Ints
from sie_triton.contract.spec import AUTO, ModelSpec
from sie_triton.contract.tensors import READ
from sie_triton.engines import Engine
from sie_triton.engines.base import Encoder
from sie_triton.errors import LoadError
from sie_triton.models.families.base import Adapter
from sie_triton.models.families.gliner import choice
from sie_triton.models.families.gliner_library import ASKED, PACKAGES, RELATION_THRESHOLD, relation_labels
from sie_triton.models.families.gliner_library.candidates import bound_candidates
from sie_triton.models.families.glirel import RELATION_SCORES, RELATIONS
from sie_triton.models.families.shared.labels.spans import SPAN_SCORES, SPANS, scored
from sie_triton.models.families.shared.thresholds import least_score, least_scores

SAMPLE = json.dumps(["Ada lived in London.", [Label("person")]]).encode()


class GlinerLibraryAdapter(Adapter):
    def __init__(self, model: Any) -> None:
        super().__init__(Encoder(), limits={READ.name: 2**31 - 1})
        self.weights_bytes = sum(each.numel() * each.element_size() for each in model.parameters())
        self._model = model
        self.sample = _sample

    def items(self, batch: Batch) -> list[tuple[str, list[Label]]]:
        """Return the text and the labels of each item."""
        asked, lengths = batch.features[ASKED.name]
        assert lengths is not None
        items = [json.loads(each.tobytes()) for each in np.split(asked, np.cumsum(lengths)[:-1])]
        return [(text, [Label(*each) for each in labels]) for text, labels in items]

    def forward(self, batch: Batch) -> Rows:
        pairs = zip(self.items(batch), batch.options, strict=True)
        found = [self._library_results(*item, options) for item, options in pairs]
        entities = scored([_arrays(each.entities, 3) for each in found], SPANS, SPAN_SCORES)
        return {**entities, **scored([_arrays(each.relations, 7) for each in found], RELATIONS, RELATION_SCORES)}

    def _library_results(
        self, text: str, of_entities: Sequence[Label], options: Mapping[str, ParameterValue]
    ) -> "LibraryResults":
        if not text.strip():
            return LibraryResults([], [])
        wanted, labels = relation_labels(options), [each.read for each in of_entities]
        least = least_scores(_numbers([each.threshold for each in of_entities]), options)
        usual = float(options.get(RELATION_THRESHOLD.name, least_score(options)))
        least_of_relations = _numbers([usual if each.threshold is None else each.threshold for each in wanted])
        read = [each.read for each in wanted]
        by, threshold = choice(options), float(least.min(initial=least_score(options)))
        arguments = {"flat_ner": by["flat"], "multi_label": by["multi_label"], "threshold": threshold}
        of_relations = float(least_of_relations.min(initial=np.inf))
        found, related = self._inferred(text, labels, read, arguments, of_relations)
        numbers = [labels.index(each["label"]) for each in found]
        # GLiFormer's entities may have less than the threshold by which it found them.
        lowest = min(threshold, of_relations)
        is_kept = [
            least[number] <= lowest or each["score"] >= least[number]
            for each, number in zip(found, numbers, strict=True)
        ]
        spans = [(each["start"], each["end"], number) for each, number in zip(found, numbers, strict=True)]
        entities = [(span, each["score"]) for span, each in compress(zip(spans, found, strict=True), is_kept)]
        relations = [
            (_relation(each, read.index(each["relation"])), each["score"])
            for each in related
            if each["score"] >= least_of_relations[read.index(each["relation"])]
            and all(is_kept[each[side]["entity_idx"]] for side in ("head", "tail"))
        ]
        return LibraryResults(entities, relations)

    def _inferred(
        self, text: str, labels: Sequence[str], relations: Sequence[str], arguments: dict[str, Any], of_relations: float
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the library's entities and relations; `of_relations` is the lowest threshold of relations."""
        if relations:
            arguments |= {"relations": relations, "relation_threshold": of_relations}
            (found,), (related,) = self._model.inference([text], labels, **arguments)
            return found, related
        alone = {"return_relations": False} if finds_relations(self._model) else {}
        (found,) = self._model.inference([text], labels, **arguments, **alone)
        return found, ()


Row = tuple[tuple[int, ...], float]


class LibraryResults(NamedTuple):
    """Entities and relations of one text: the row of each, as in SPANS and RELATIONS, and its score."""

    entities: Sequence[Row]
    relations: Sequence[Row]


def _numbers(thresholds: Sequence[float | None]) -> Floats:
    """Return thresholds, NaN for None."""
    return np.array([np.nan if each is None else each for each in thresholds], np.float32)


def finds_relations(model: Any) -> bool:
    return getattr(model.config, "relations_layer", None) is not None


def _relation(found: Mapping[str, Any], label: int) -> tuple[int, ...]:
    head, tail = found["head"], found["tail"]
    places = (head["start"], head["end"], tail["start"], tail["end"])
    return (head["entity_idx"], tail["entity_idx"], *places, label)


def _arrays(found: Sequence[Row], width: int) -> tuple[Ints, Floats]:
    """Return the rows of a text and their scores."""
    values = np.array([row for row, _ in found], np.int32).reshape(-1, width)
    return values, np.array([score for _, score in found], np.float32)


def _sample(lengths: Sequence[int]) -> Features:
    asked = np.frombuffer(SAMPLE * len(lengths), np.uint8)
    return {
        READ.name: Ragged(np.array(lengths, np.int32)),
        ASKED.name: Ragged(asked, np.full(len(lengths), len(SAMPLE), np.int32)),
    }


def loaded_by(library: str, packages: str, load: Callable[[], Any], spec: ModelSpec, directory: Path) -> Any:
    """Return the model that a library loads from `directory`; LoadError if it is not installed, or cannot read it.

    `load` imports the library. `packages` are those of its worker environment, which has the library's name.
    """
    if (backend := spec.runtime.attention_backend) != AUTO:
        raise LoadError(
            f"SIE_ATTENTION_BACKEND={backend} cannot be used for this model: the library {library} chooses its "
            "attention; use auto",
            "unsupported",
        )
    try:
        return load()
    except ImportError as exc:
        raise LoadError(
            f"{library} is not installed ({exc}); run sie-triton env add {library} {packages}, or name another "
            "environment in the model file",
            "dependency",
        ) from exc
    except Exception as exc:  # the library may raise anything
        raise LoadError(f"{directory}: {library} cannot load it: {first_line(exc)}", "corrupt") from exc


def load_adapter(spec: ModelSpec, directory: Path, engine: Engine) -> GlinerLibraryAdapter:
    """Load the model; raise LoadError if the library is not installed, or cannot read the directory."""
    model = loaded_by("gliner", PACKAGES, lambda: _load(directory), spec, directory)
    if getattr(model.config, "triples_layer", None):
        message = f"{directory}: gliner_config.json: triples_layer: models that score triples cannot be served"
        raise LoadError(message, "unsupported")
    if finds_relations(model):
        bound_candidates(model.model)
    return GlinerLibraryAdapter(model.eval())


def _load(directory: Path) -> Any:
    from gliner import GLiNER

    return GLiNER.from_pretrained(str(directory), local_files_only=True)
