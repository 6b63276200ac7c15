"""A model as its verbs see it, and the data that its ensembles pass from step to step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from sie_triton.contract.arrays import Array, Ints, item_lengths
from sie_triton.contract.findings import Findings
from sie_triton.contract.outputs import Output
from sie_triton.contract.parameters import Parameter, ParameterValue
from sie_triton.contract.spec import ModelSpec, Profile
from sie_triton.contract.tensors import IMAGE, Tensor

# Tensors by name. A tensor has one row per item; a ragged one has as many as its lengths tensor says.
Rows = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Extraction:
    """Extraction by a family."""

    computed: tuple[Tensor, ...] = ()  # that a forward pass returns for each piece of an item
    # The rows of one item's pieces, and the request's options → the findings of the item.
    findings: "Callable[[Sequence[Rows], Mapping[str, ParameterValue]], Findings]" = lambda rows, options: Findings()
    labels: Literal["", "optional", "required"] = ""
    entities: bool = False  # a request must send known ones


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model as its verbs see it."""

    spec: ModelSpec
    # From preprocess to inference. The first gives the length of each item: by its lengths, or else by its values.
    features: tuple[Tensor, ...]
    outputs: Mapping[str, Output]  # of encode
    parameters: tuple[Parameter, ...] = ()  # the family's own
    scores_pairs: bool = False  # query and text go through the model together
    extraction: Extraction = Extraction()  # only used if the model extracts
    takes_loras: bool = False  # a request may name a LoRA adapter

    @property
    def reads_pages(self) -> bool:
        """True if an item may be a PDF."""
        return IMAGE.name in self.spec.inputs

    @property
    def lengths(self) -> str:
        """Name of the tensor of the items' lengths."""
        return self.features[0].lengths or self.features[0].name

    def tensors(self, types: frozenset[str]) -> tuple[Tensor, ...]:
        """Return the tensors of these output types, in the model's order."""
        return tuple(tensor for name, output in self.outputs.items() if name in types for tensor in output.tensors)


class Ragged(NamedTuple):
    """Packed rows of items: `values` [rows, …], `lengths` int32 [items]. `lengths` None: each item has one row."""

    values: Array
    lengths: Ints | None = None

    @classmethod
    def of(cls, items: Sequence[Array]) -> "Ragged":
        """Pack the rows of items, one array each."""
        return cls(np.concatenate(items), item_lengths(items))

    @property
    def of_items(self) -> Array:
        """Return one row per item: the lengths, or the values if there are no lengths."""
        return self.values if self.lengths is None else self.lengths

    def split(self) -> list[Array]:
        """Return the rows of each item of a feature with lengths."""
        assert self.lengths is not None
        return np.split(self.values, np.cumsum(self.lengths)[:-1])


Features = Mapping[str, Ragged]


@dataclass(frozen=True, slots=True)
class Batch:
    """A sub-batch: the packed features of `num_items` items, without padding."""

    features: Features
    is_query: npt.NDArray[np.bool_]  # [items]
    outputs: frozenset[str] = frozenset()  # types that any item needs
    options: Sequence[Mapping[str, ParameterValue]] = ()  # of each item, for the family; empty if the family has none
    loras: Sequence[str] = ()  # LoRA adapter of each item, "" for none; empty if no item has one
    deadline_ns: int | None = None  # monotonic: after it, no client waits for any of the rows; None: unknown

    @property
    def num_items(self) -> int:
        return len(self.is_query)


@dataclass(frozen=True, slots=True)
class Part:
    """Elements of one request that the model reads in the same way."""

    name: str  # input that they came in
    elements: Sequence[Any]
    profile: Profile = field(default_factory=Profile)
    is_query: bool | None = None  # None: the request does not say
    instruction: str | None = None
    query: Any = None  # read with each element, as are `labels`
    labels: Sequence[Any] = ()
    # The request's over those of its profile, for families that read them before the forward pass
    options: Mapping[str, ParameterValue] = field(default_factory=dict)
    prompt_name: str = ""  # in the model's files; empty: that of the role


@dataclass(slots=True)
class Computed:
    """A request after its forward pass: its options, and its tensors by name."""

    options: Mapping[str, ParameterValue]
    tensors: Rows
