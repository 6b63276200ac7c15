"""What a family of models is, and what a loaded model of it can do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from sie_triton.checkpoints.modules import TextFiles
from sie_triton.contract import Batch, Extraction, Features, Output, Parameter, Ragged, Rows
from sie_triton.contract.tensors import INPUT_IDS, NUMPY_DTYPES, PROMPT_TOKENS, Tensor
from sie_triton.engines.base import Encoder
from sie_triton.inputs import Processor
from sie_triton.spec import ANY_LENGTH, ModelSpec


@dataclass(frozen=True)
class Options:
    """What a model file may say under `adapter_options.loadtime` for models of a family: a frozen dataclass.

    Fields are checked by pydantic; `Annotated` with `annotated_types` narrows them.
    """

    __pydantic_config__: ClassVar = {"extra": "forbid"}


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a directory is found to hold, without a model file. `normalize` None: the family has no dense vectors.

    `reason` says which file said what. `dims` are the output types of encode and their sizes. `options` are the
    family's own, as the files have them. `query_prompt` is what they put before a query. `weights` are the directories
    that must hold weights, that of the transformer, with its tokenizer, first. `doubt`: why a model file has to say
    that it is of this family; empty where the files say it.
    """

    reason: str
    max_sequence_length: int
    dims: Mapping[str, int]
    scores: bool = False
    extracts: bool = False
    normalize: bool | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    query_prompt: str = ""
    weights: tuple[Path, ...] = ()
    doubt: str = ""


class Adapter(ABC):
    """A loaded model, in the process that computes. `forward` is called by as many threads as there are lanes.

    `limits`: the largest value of an integer feature, by name. `dims`: the sizes of outputs whose tensors do not show
    them.
    """

    encoder: Encoder
    weights_bytes: int
    limits: Mapping[str, int]
    dims: Mapping[str, int]

    # Features of items about as long as these together, for measuring; None: those of the family will do.
    sample: Callable[[Sequence[int]], Features] | None = None

    def __init__(
        self, encoder: Encoder, *, limits: Mapping[str, int] | None = None, dims: Mapping[str, int] | None = None
    ) -> None:
        self.encoder = encoder
        self.weights_bytes = encoder.weights_bytes
        self.limits, self.dims = limits or {}, dims or {}

    @abstractmethod
    def forward(self, batch: Batch) -> Rows:
        """The tensors of `batch.outputs` by name, all items one after another; `dense` not yet normalised."""


class Family(ABC):
    """A kind of model: what models of it take and give, and how they are read. Holds nothing; imports no torch.

    `inputs` are the kinds of input that it reads, `unread_inputs` those that SIE's model files name beside them: the
    text of labels, for one, which is no item. `outputs` are the output types of encode that it can give, its own or the
    contract's. `score_modes` are ways to score by them, the default first; with `scores_pairs` query and text go
    through the model together. `verbs` are what it does beside encode and score; `extraction` is how it extracts.
    `features` is what its processor makes of an element; the first says how long the item is: by its own lengths, or,
    where it is not ragged, by its values. `parameters` are request parameters of its own, which reach `Adapter.forward`
    item by item. `engines` can compute its encoder, the usual one first; `loaders` are what stands in for `load` with
    one of them: engine → module with a function `load` of the same arguments; `unread_options` are options that have no
    effect with one of them. `environment` is the one that its workers
    run in where a model file names none. `reference_adapters` are names of it in SIE's own model files. `files` are
    patterns of files that a checkpoint of it has beside the usual ones. `recognises_quickly`: without reading weights.
    `generates`: its forward passes make one token after another, and take seconds however little they cost.
    `takes_loras`: its encoder runs LoRA adapters, those of several items side by side.
    """

    inputs: ClassVar[tuple[str, ...]] = ("text",)
    unread_inputs: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[tuple[Output, ...]] = ()
    score_modes: ClassVar[tuple[str, ...]] = ()
    scores_pairs: ClassVar[bool] = False
    verbs: ClassVar[tuple[str, ...]] = ()
    extraction: ClassVar[Extraction] = Extraction()
    features: ClassVar[tuple[Tensor, ...]] = (INPUT_IDS, PROMPT_TOKENS)
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    options: ClassVar[type[Options]] = Options
    engines: ClassVar[tuple[str, ...]] = ("torch",)
    loaders: ClassVar[Mapping[str, str]] = {}
    unread_options: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    environment: ClassVar[str] = ""
    reference_adapters: ClassVar[tuple[str, ...]] = ()
    files: ClassVar[tuple[str, ...]] = ()
    recognises_quickly: ClassVar[bool] = True
    generates: ClassVar[bool] = False
    takes_loras: ClassVar[bool] = False

    @property
    def tasks(self) -> tuple[str, ...]:
        """What can be asked of it, as in a model file."""
        return (
            *(f"encode.{output.name}" for output in self.outputs),
            *(["score"] if self.can_score else []),
            *self.verbs,
        )

    @property
    def can_score(self) -> bool:
        return self.scores_pairs or bool(self.score_modes)

    def recognise(self, directory: Path) -> Recognised | None:
        """What `directory` holds, None if no model of this family; LoadError if one that cannot be served."""
        return None

    def elsewhere(self, directory: Path) -> Mapping[str, str]:
        """What a checkpoint of it leaves to other repositories: directory in it → repository of the small files there.

        Asked when its own small files are here; LoadError as in `recognise`.
        """
        return {}

    def longest(self, directory: Path) -> int:
        """Rows of its first feature that the checkpoint in `directory` reads of one item, at most."""
        return ANY_LENGTH

    @abstractmethod
    def processor(self, spec: ModelSpec, directory: Path) -> Processor:
        """What makes features of elements; LoadError says what is wrong with its files."""

    @abstractmethod
    def load(self, spec: ModelSpec, directory: Path, engine: Any) -> Adapter:
        """Load the weights in `directory`; `engine` is one of `engines`. LoadError says what cannot be used."""

    def refusals(self, spec: ModelSpec) -> Iterator[str]:
        """Of what a model file asks for, each thing in it that disagrees with another, with its key."""
        return iter(())

    def options_of(self, spec: ModelSpec) -> Any:
        """The model's own options."""
        return self.options(**spec.options)

    def sample(self, lengths: Sequence[int]) -> Features:
        """Features of items of these lengths, for measuring; what they hold does not matter."""
        return {tensor.name: _ones(tensor, lengths) for tensor in self.features}


class TextFamily(Family):
    """A family of transformers that read tokens."""

    def longest(self, directory: Path) -> int:
        return TextFiles.read(directory).max_sequence_length


def _ones(tensor: Tensor, lengths: Sequence[int]) -> Ragged:
    of_items: npt.NDArray[np.int32] = np.array(lengths, np.int32)
    dtype = NUMPY_DTYPES[tensor.dtype]
    width = tuple(max(1, dim) for dim in tensor.dims[1:])
    if not tensor.lengths:
        return Ragged(np.zeros((len(lengths), *width), dtype))
    return Ragged(np.ones((sum(lengths), *width), dtype), of_items)
