"""Texts and labels → JSON, for the library. No torch."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sie_triton.checkpoints.files import read_fields
from sie_triton.contract import Features, Part, Ragged
from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import READ
from sie_triton.errors import InputError
from sie_triton.models.families.gliner2.request import RELATION_LABELS
from sie_triton.models.families.gliner_library import ASKED, CHARACTERS_A_TOKEN, CONFIG, relation_labels
from sie_triton.models.inputs.base import Frame, Processor
from sie_triton.models.inputs.words import PromptedTexts


class PlainProcessor(Processor):
    """Processor of a checkpoint that finds relations, or finds none."""

    def __init__(self, finds_relations: bool) -> None:
        self._finds_relations = finds_relations

    def frame(self, part: Part) -> Frame:
        super().frame(part)
        if relation_labels(part.options) and not self._finds_relations:
            raise InputError.at(f"parameter {RELATION_LABELS.name}", "this model finds no relations; leave it out")
        labels = tuple(part.labels)
        return PromptedTexts(lambda: labels, sum(len(label.read) for label in labels))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        asked = [json.dumps([text, labels]).encode() for labels, text in framed]
        written = Ragged.of([np.frombuffer(each, np.uint8) for each in asked])
        return {READ.name: Ragged(1 + written.of_items // CHARACTERS_A_TOKEN), ASKED.name: written}


def load_processor(spec: ModelSpec, directory: Path) -> PlainProcessor:
    return PlainProcessor(bool(read_fields(directory / CONFIG).values.get("relations_layer")))
