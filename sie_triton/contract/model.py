"""A model as its verbs see it, and what travels between the steps of its ensembles."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sie_triton.contract.findings import Findings
from sie_triton.contract.outputs import Output
from sie_triton.contract.parameters import Parameter, ParameterValue
from sie_triton.contract.tensors import IMAGE, Tensor
from sie_triton.spec import ModelSpec, Profile

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int32]

# Tensors by name: one row an item, or, of ragged ones, as many as the tensor of their lengths says.
Rows = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Extraction:
    """How a family extracts. `labels`: whether a request may, or must, bring some; `entities`: whether it must.

    `computed` is what its forward passes give for each piece of an item; `findings` makes of those of one item, and
    the request's options, what was found in it.
    """

    computed: tuple[Tensor, ...] = ()
    findings: "Callable[[Sequence[Rows], Mapping[str, ParameterValue]], Findings]" = lambda rows, options: Findings()
    labels: Literal["", "optional", "required"] = ""
    entities: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """`features` are what preprocess sends to inference; the first says how long each item is: by its own lengths, or,
    where it is not ragged, by its values.

    `outputs` are those of encode by name. `parameters` are the family's own; with `scores_pairs` query and text go
    through the model together. `extraction` is of use where it extracts. With `takes_loras` a request may name a LoRA
    adapter.
    """

    spec: ModelSpec
    features: tuple[Tensor, ...]
    outputs: Mapping[str, Output]
    parameters: tuple[Parameter, ...] = ()
    scores_pairs: bool = False
    extraction: Extraction = Extraction()
    takes_loras: bool = False

    @property
    def reads_pages(self) -> bool:
        """Whether an item may be a PDF."""
        return IMAGE.name in self.spec.inputs

    @property
    def lengths(self) -> str:
        """The tensor of the items' lengths."""
        return self.features[0].lengths or self.features[0].name

    def lengths_of(self, features: "Features") -> Ints:
        """int32 [items]."""
        return features[self.features[0].name].of_items

    def tensors(self, types: frozenset[str]) -> tuple[Tensor, ...]:
        """Those of some output types, in the model's order."""
        return tuple(tensor for name, output in self.outputs.items() if name in types for tensor in output.tensors)


class Ragged(NamedTuple):
    """Rows of items one after another: `values` [rows, …], `lengths` int32 [items]; None: each item has one row."""

    values: Array
    lengths: Ints | None = None

    @property
    def of_items(self) -> Array:
        """A row for each item."""
        return self.values if self.lengths is None else self.lengths


Features = Mapping[str, Ragged]


@dataclass(frozen=True, slots=True)
class Batch:
    """One sub-batch: the features of `num_items` items end to end, nothing padded.

    `is_query`: bool [items]. `outputs`: the output types that any of the items needs. `options`: the family's own
    request parameters, one mapping an item; empty where the family has none. `loras`: the name of each item's LoRA
    adapter, "" for none; empty where no item has one. `group` is what all items have in common that changes the forward
    pass. After `deadline_ns`, monotonic, nobody waits for any of the rows; None: not known.
    """

    features: Features
    is_query: npt.NDArray[np.bool_]
    outputs: frozenset[str] = frozenset()
    options: Sequence[Mapping[str, ParameterValue]] = ()
    loras: Sequence[str] = ()
    group: Hashable = None
    deadline_ns: int | None = None

    @property
    def num_items(self) -> int:
        return len(self.is_query)


@dataclass(frozen=True, slots=True)
class Part:
    """Elements of one request that the model reads alike; `name` is the input that they came in.

    `is_query` None: nobody said. With a `query`, or with `labels`, each element is read together with it. `options`
    are the request's, over those of its profile, where a family reads some before the forward pass.
    """

    name: str
    elements: Sequence[Any]
    profile: Profile = field(default_factory=Profile)
    is_query: bool | None = None
    instruction: str | None = None
    query: Any = None
    labels: Sequence[Any] = ()
    options: Mapping[str, ParameterValue] = field(default_factory=dict)


@dataclass(slots=True)
class Computed:
    """One request after its forward pass: its options, and its tensors by name."""

    options: Mapping[str, ParameterValue]
    tensors: Rows
