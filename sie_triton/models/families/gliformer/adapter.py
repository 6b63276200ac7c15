"""Texts, labels and groups of labels through the library gliformer."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.contract import Batch, ParameterValue, Rows
from sie_triton.contract.arrays import Floats, item_lengths
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import DENSE
from sie_triton.engines import Engine
from sie_triton.errors import LoadError
from sie_triton.models.families.gliformer import GROUP_SCORES, NONE, NUM_ASKED, PACKAGES
from sie_triton.models.families.gliformer.spans import best_spans
from sie_triton.models.families.gliner import MULTI_LABEL
from sie_triton.models.families.gliner_library.adapter import GlinerLibraryAdapter, loaded_by
from sie_triton.models.families.shared.label_groups import groups_of
from sie_triton.models.families.shared.thresholds import least_score

# Maximum entities of a text between which relations are looked for: those with the best scores.
MAX_ENTITIES = 100


class GliformerAdapter(GlinerLibraryAdapter):
    def forward(self, batch: Batch) -> Rows:
        items = self.items(batch)
        found = super().forward(batch)
        scores = [self._group_scores(text, options) for (text, _), options in zip(items, batch.options, strict=True)]
        asked = [len(labels) + len(of_item) for (_, labels), of_item in zip(items, scores, strict=True)]
        found[NUM_ASKED.name] = np.array(asked, np.int32)
        found |= {GROUP_SCORES.name: np.concatenate(scores), GROUP_SCORES.lengths: item_lengths(scores)}
        if DENSE.name in batch.outputs:
            found[DENSE.name] = self._model.embed_text([text for text, _ in items], batch_size=1).float().numpy()
        return found

    def _group_scores(self, text: str, options: Mapping[str, ParameterValue]) -> Floats:
        """Return the score of each label of the groups, NONE for those that do not apply."""
        groups = groups_of(options)
        if not groups or not text.strip():
            return np.full(sum(len(group.labels) for group in groups), NONE, np.float32)
        asked = {group.name: [label.read for label in group.labels] for group in groups}
        multi = bool(options.get(MULTI_LABEL.name, False))
        arguments = {"threshold": least_score(options), "multi_label": multi}
        (found,) = self._model.inference([text], classes=asked, **arguments)["classification"]
        scores = [{each["class_name"]: each["score"] for each in of_group} for of_group in found]
        of_labels = zip(groups, scores, strict=True)
        return np.array([of.get(label.read, NONE) for group, of in of_labels for label in group.labels], np.float32)

    def _inferred(
        self, text: str, labels: Sequence[str], relations: Sequence[str], arguments: dict[str, Any], of_relations: float
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        if not labels:
            return (), ()
        arguments["threshold"] = min(arguments["threshold"], of_relations)
        if not relations:
            (found,) = self._model.inference([text], entities=labels, **arguments)["ner"]
            return found, ()
        asked = {"": {"entities": labels, "relations": relations}}
        both = self._model.inference([text], joint_relations=asked, **arguments)
        return both["ner"][0], both["joint_relex"][0]


def load_adapter(spec: ModelSpec, directory: Path, engine: Engine) -> GliformerAdapter:
    """Load the model; raise LoadError if the library is not installed, or cannot read the directory."""
    model = loaded_by("gliformer", PACKAGES, lambda: _load(directory), spec, directory)
    heads = model.model.heads
    if "ner" not in heads:
        raise LoadError(f"{directory}: a model without the head ner cannot be served", "unsupported")
    if "joint_relex" in heads:
        head = heads["joint_relex"]
        head.max_relation_entities = min(head.max_relation_entities or MAX_ENTITIES, MAX_ENTITIES)
    # embed_text cuts texts at the tokenizer's limit, which checkpoints may leave open.
    tokenizer = model.data_processor.transformer_tokenizer
    tokenizer.model_max_length = min(tokenizer.model_max_length, int(model.config.max_len))
    return GliformerAdapter(model.eval())


def _load(directory: Path) -> Any:
    from gliformer import GLiFormer
    from gliformer.tasks.span_decoder import SpanDecoder

    SpanDecoder._calculate_span_score = best_spans
    return GLiFormer.from_pretrained(str(directory), local_files_only=True, load_tokenizer=True)
