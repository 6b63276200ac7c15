"""GLiNER through the library gliner, in a worker environment: for checkpoints whose head we do not support.

text and labels → gliner → entities

Texts run one after another, without packing. The library truncates a text that is longer than the checkpoint reads. A
label's own threshold is applied to results found with the lowest threshold.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sie_triton.contract import Extraction, Features, Label, Part, Ragged
from sie_triton.contract.tensors import READ, Tensor
from sie_triton.families.base import Adapter, Family
from sie_triton.families.gliner import FLAT_NER, MERGE_ADJACENT, MULTI_LABEL, entities
from sie_triton.families.shared.labels.spans import SPAN_LENGTHS, SPAN_SCORES, SPANS
from sie_triton.families.shared.thresholds import THRESHOLD
from sie_triton.inputs.base import Frame, Processor
from sie_triton.spec import ANY_LENGTH, ModelSpec

if TYPE_CHECKING:
    from sie_triton.engines import Engine

ASKED_LENGTHS = Tensor("asked_lengths", "INT32", (-1,), "[n] bytes of each item")
ASKED = Tensor("asked", "UINT8", (-1,), "[bytes] JSON of text, labels and their thresholds", ASKED_LENGTHS.name)

CHARACTERS_A_TOKEN = 4
PACKAGES = "gliner torch"


class LabelFrame(NamedTuple):
    labels: tuple[Label, ...]

    @property
    def size(self) -> int:
        return sum(len(label.read) for label in self.labels)

    def around(self, element: Any) -> tuple[tuple[Label, ...], str]:
        return self.labels, element


class PlainProcessor(Processor):
    def frame(self, part: Part) -> Frame:
        super().frame(part)
        return LabelFrame(tuple(part.labels))

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        asked = [
            [text, [label.read for label in labels], [each.threshold for each in labels]] for labels, text in framed
        ]
        written = [json.dumps(each).encode() for each in asked]
        lengths = np.array(list(map(len, written)), np.int32)
        return {
            READ.name: Ragged(1 + lengths // CHARACTERS_A_TOKEN),
            ASKED.name: Ragged(np.frombuffer(b"".join(written), np.uint8), lengths),
        }


class GlinerLibrary(Family):
    verbs = ("extract",)
    extraction = Extraction((SPANS, SPAN_SCORES, SPAN_LENGTHS), entities, "required")
    features = (READ, ASKED)
    parameters = (THRESHOLD, FLAT_NER, MULTI_LABEL, MERGE_ADJACENT)
    engines = ("sie_triton.engines:Engine",)
    environment = "gliner"
    files = ("gliner_config.json",)

    def longest(self, directory: Path) -> int:
        return ANY_LENGTH

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        return PlainProcessor()

    def load(self, spec: ModelSpec, directory: Path, engine: "Engine") -> Adapter:
        from sie_triton.families.gliner_library.adapter import load

        return load(directory)
