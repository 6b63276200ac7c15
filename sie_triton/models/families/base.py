"""Interfaces of a model family and of a loaded model."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Batch, Extraction, Features, Output, Parameter, Ragged, Rows
from sie_triton.contract.spec import ANY_LENGTH, TORCH, ModelSpec
from sie_triton.contract.tensors import INPUT_IDS, NUMPY_DTYPES, PROMPT_TOKENS, Tensor
from sie_triton.engines.base import Encoder
from sie_triton.errors import LoadError
from sie_triton.models.inputs import Processor


@dataclass(frozen=True)
class Options:
    """The family's options under `adapter_options.loadtime` in a model file: a frozen dataclass.

    pydantic checks the fields; `Annotated` with `annotated_types` narrows them.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}

    @classmethod
    def of(cls, spec: ModelSpec) -> Self:
        """Return the options in a model file."""
        return cls(**spec.options)


@dataclass(frozen=True, slots=True)
class Recognised:
    """Contents of a directory without a model file, as a family recognised them."""

    reason: str  # which file said what
    max_sequence_length: int
    dims: Mapping[str, int]  # sizes of the output types of encode
    scores: bool = False
    extracts: bool = False
    normalize: bool | None = None  # None: no dense vectors
    options: Mapping[str, Any] = field(default_factory=dict)  # the family's, from the files
    query_prompt: str = ""  # from the files
    weights: tuple[Path, ...] = ()  # directories that must hold some, first that of the transformer and its tokenizer
    doubt: str = ""  # why a model file must confirm the family; empty if the files are unambiguous


class Adapter(ABC):
    """A loaded model, in the worker. Each lane calls `forward` from its own thread.

    `limits` are the largest values of integer features, by name. `dims` are the sizes of outputs whose tensors do not
    show them.
    """

    encoder: Encoder
    weights_bytes: int
    limits: Mapping[str, int]
    dims: Mapping[str, int]

    # Function that makes features of about this total length, for measuring; None uses that of the family.
    sample: Callable[[Sequence[int]], Features] | None = None

    def __init__(
        self, encoder: Encoder, *, limits: Mapping[str, int] | None = None, dims: Mapping[str, int] | None = None
    ) -> None:
        self.encoder = encoder
        self.weights_bytes = encoder.weights_bytes
        self.limits, self.dims = limits or {}, dims or {}

    @abstractmethod
    def forward(self, batch: Batch) -> Rows:
        """Return the tensors of `batch.outputs` by name, all items one after another; `dense` is not yet normalised."""


class Family:
    """A kind of model: its inputs, outputs and options, and how its files are read. Stateless; imports no torch.

    A family is a folder. Its `__init__` declares the family, reads and recognises directories, and has a function
    `load_processor(spec, directory)`, which returns the processor. Its module `adapter` has a function
    `load_adapter(spec, directory, engine)`, which returns the model with its weights. Both raise LoadError, which names
    what in the directory cannot be used. A family in a single module names that module in `engines`. A family that adds
    options to those of another one has functions of its own.
    """

    inputs: ClassVar[tuple[str, ...]] = ("text",)
    unread_inputs: ClassVar[tuple[str, ...]] = ()  # that SIE's model files name in addition, such as the text of labels
    outputs: ClassVar[tuple[Output, ...]] = ()  # of encode, the family's own or the contract's
    score_modes: ClassVar[tuple[str, ...]] = ()  # by its outputs, the default first
    scores_pairs: ClassVar[bool] = False  # the model reads query and text together
    extraction: ClassVar[Extraction | None] = None
    # The first feature gives the length of an item: its own length or, if it is not ragged, its value.
    features: ClassVar[tuple[Tensor, ...]] = (INPUT_IDS, PROMPT_TOKENS)
    parameters: ClassVar[tuple[Parameter, ...]] = ()  # of requests; they reach `Adapter.forward` item by item
    options: ClassVar[type[Options]] = Options
    processor_module: ClassVar[str] = "."  # with `load_processor`
    # Engines that can compute the encoder, the default first → module with `load_adapter`.
    engines: ClassVar[Mapping[str, str]] = {TORCH: ".adapter"}
    unread_options: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # engine → options without effect
    environment: ClassVar[str] = ""  # of the worker, by default
    reference_adapters: ClassVar[tuple[str, ...]] = ()  # the family's names in SIE's model files
    not_served: ClassVar[Mapping[str, str]] = {}  # repositories that SIE serves with these adapters → why not here
    served_elsewhere: ClassVar[Mapping[str, str]] = {}  # repositories that SIE serves with these adapters → family here
    files: ClassVar[tuple[str, ...]] = ()  # patterns of files that a checkpoint has in addition to the usual ones
    recognises_quickly: ClassVar[bool] = True  # without reading weights
    generates: ClassVar[bool] = False  # one token after another, so that a pass takes seconds however low its cost
    takes_loras: ClassVar[bool] = False  # those of several items in one pass

    @property
    def default_engine(self) -> str:
        return next(iter(self.engines))

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that the family supports, as a model file lists them."""
        return (
            *(f"encode.{output.name}" for output in self.outputs),
            *(["score"] if self.can_score else []),
            *(["extract"] if self.extraction is not None else []),
        )

    @property
    def can_score(self) -> bool:
        return self.scores_pairs or bool(self.score_modes)

    def recognise(self, directory: Path) -> Recognised | None:
        """Return what `directory` holds, None if it is not of this family; raise LoadError if it cannot be served."""
        return None

    def other_repositories(self, directory: Path) -> Mapping[str, str]:
        """Return the directories whose small files are in other repositories: directory in the checkpoint → repository.

        Called when the checkpoint's own small files are here. Raises LoadError like `recognise`.
        """
        return {}

    def keeps_tokenizer(self, directory: Path) -> bool:
        """Return True if the model's library tokenizes without transformers, so that the files decide by themselves."""
        return False

    def longest(self, directory: Path) -> int:
        """Return the maximum length of an item, in rows of the first feature, for the checkpoint in `directory`."""
        return ANY_LENGTH

    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        """Load the processor, which makes features of elements; raise LoadError saying what is wrong with its files."""
        processor: Processor = self._function("load_processor", self.processor_module)(spec, directory)
        return processor

    def load(self, spec: ModelSpec, directory: Path, engine: Any) -> Adapter:
        """Load the weights in `directory` with one of `engines`; raise LoadError saying what cannot be used."""
        if spec.engine not in self.engines:
            usable = ", ".join(self.engines)
            raise LoadError(f"engine {spec.engine}: this family cannot use it, but {usable}", "unsupported")
        adapter: Adapter = self._function("load_adapter", self.engines[spec.engine])(spec, directory, engine)
        return adapter

    def refusals(self, spec: ModelSpec) -> Iterator[str]:
        """Yield each contradiction in the model file, beginning with its key."""
        return iter(())

    def sample(self, lengths: Sequence[int]) -> Features:
        """Return features of items of these lengths, for measuring. Their values do not matter."""
        return {tensor.name: _ones(tensor, lengths) for tensor in self.features}

    def _function(self, name: str, module: str) -> Any:
        """Return a function of a module with a full name, in the family's folder (".name"), or of its own module (".").

        A family that extends another one has the functions of that one. Raises LoadError if there is none.
        """
        for kind in type(self).__mro__:
            found = None
            with suppress(ModuleNotFoundError):  # the family's own module is no package
                found = find_spec(module, kind.__module__)
            if found is not None and hasattr(imported := import_module(module, kind.__module__), name):
                return getattr(imported, name)
        raise LoadError(f"family {type(self).__name__}: has no {name} in the module {module}", "dependency")


class TextFamily(Family):
    """A family of transformers that read tokens."""

    def longest(self, directory: Path) -> int:
        return TextFiles.read(directory).lengths.longest


def _ones(tensor: Tensor, lengths: Sequence[int]) -> Ragged:
    of_items: npt.NDArray[np.int32] = np.array(lengths, np.int32)
    dtype = NUMPY_DTYPES[tensor.dtype]
    width = tuple(max(1, dim) for dim in tensor.dims[1:])
    if not tensor.lengths:
        return Ragged(np.zeros((len(lengths), *width), dtype))
    return Ragged(np.ones((sum(lengths), *width), dtype), of_items)
