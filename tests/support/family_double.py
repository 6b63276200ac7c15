"""A family as a third-party package would bring it: an output, a feature, an option and a parameter of its own.

Importing this module stands for installing the package, which declares the family.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge

from sie_triton.contract import ENCODE_OUTPUTS, Features, Output, Parameter, Ragged
from sie_triton.contract.tensors import DENSE, Tensor
from sie_triton.engines import Encoder, Engine
from sie_triton.models.families import Adapter, Family, Options
from sie_triton.models.inputs import Processor
from tests.support.environments import declare

LETTERS = Tensor("letters", "INT32", (-1,), "", "num_letters", 0)
PAIRS = Tensor("pairs", "FP32", (-1, 2), "", "num_letters")
WEIGHT = Tensor("weight", "FP32", (-1, 3))

TAGS = Tensor("tags", "FP32", (-1, -1), "", "tags_lengths")
TAGS_LENGTHS = Tensor("tags_lengths", "INT32", (-1,))

NAME = f"{__name__}:Own"

SITE = TemporaryDirectory(prefix="sie-site-")
declare(Path(SITE.name), NAME)
sys.path.append(SITE.name)


@dataclass(frozen=True)
class OwnOptions(Options):
    depth: Annotated[int, Ge(1)] = 3


class OwnEngine(Engine):
    name = "own"


class NoEngine:
    """Class with an engine's signature that is no Engine."""

    def __init__(self, *_: Any) -> None:
        pass


class OwnProcessor(Processor):
    """A text's letters, once as they are and once in two numbers each."""

    def encode(self, framed: Sequence[str], *, is_query: bool) -> Features:
        letters = np.array([ord(letter) for letter in "".join(framed)], np.int32)
        lengths = np.array([len(text) for text in framed], np.int32)
        pairs = np.stack([letters, -letters], 1).astype(np.float32)
        weight = np.full((len(framed), 3), float(is_query), np.float32)
        return {"letters": Ragged(letters, lengths), "pairs": Ragged(pairs, lengths), "weight": Ragged(weight)}


class OwnAdapter(Adapter):
    """Vectors of two entries, or as many as `dense_dim` says; a row of four numbers a letter."""

    dense_dim = 2

    def forward(self, batch):
        letters, lengths = batch.features["letters"]
        assert lengths is not None
        dense = np.ones((batch.num_items, self.dense_dim), np.float32)
        tags = np.ones((len(letters), 4), np.float32)
        return {"dense": dense, "tags": tags, "tags_lengths": lengths}


class Own(Family):
    outputs = (ENCODE_OUTPUTS[DENSE.name], Output("tags", (TAGS, TAGS_LENGTHS)))
    score_modes = ("dense",)
    features = (LETTERS, PAIRS, WEIGHT)
    parameters = (
        Parameter("threshold", float, minimum=0, maximum=1),
        Parameter("labels", str, ("near", "far"), is_list=True),
    )
    options = OwnOptions
    engines: ClassVar = {f"{__name__}:OwnEngine": __name__, "torch": __name__}


def load_processor(spec, directory):
    return OwnProcessor()


def load_adapter(spec, directory, engine):
    return OwnAdapter(Encoder())
