"""What all verbs have in common; each is one module beside this one, and one line in the package."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sie_triton.contract.model import Computed, Ints, Model, Part, Rows
from sie_triton.contract.parameters import Parameter, ParameterValue
from sie_triton.contract.tensors import NUM_PAGES, PAGE_NUMBERS, TIMING_MS, TOKEN_COUNT, TRUNCATED, Tensor
from sie_triton.spec import Profile

# An instruction goes with every text. A longer one, for each token that the model reads, would leave no room for the
# texts, and cost its length for each of them.
CHARACTERS_PER_TOKEN = 16
LONGEST_INSTRUCTION = 32_768  # tokens

PAGES = Parameter(
    "pages",
    str,
    max_characters=1000,
    for_prompt=True,
    doc="of images that are PDFs, which pages, each an item of its own: 1-3,8, 5-; all where not said",
)

LONGEST_LORA = 200  # characters of an adapter's name

LORA = Parameter(
    "lora",
    str,
    max_characters=LONGEST_LORA,
    doc="LoRA adapter of the model that items run through, over the profile's; empty: none",
)

Options = Mapping[str, ParameterValue]


class Answering:
    """Postprocess's side of a verb; one for a process. Each request has its own `Computed`."""

    def prepare(self, requests: Sequence[Computed]) -> None:
        """What is cheaper for several requests together. If it raises, it is called again with each alone."""

    def outputs(self, request: Computed) -> Rows:
        """Every tensor that the verb declares for the model; InputError, or what is a fault of ours."""
        return request.tensors


class Verb(ABC):
    """One thing that models are asked to do. Holds nothing; every method may be called by any thread."""

    name: ClassVar[str]

    @abstractmethod
    def example(self, model: Model) -> Mapping[str, Sequence[str]]:
        """A request that can be tried: tensor → values."""

    @abstractmethod
    def inputs(self, kinds: Sequence[str]) -> tuple[Tensor, ...]:
        """What a client sends to a model that reads inputs of these kinds."""

    @abstractmethod
    def parameters(self, model: Model) -> tuple[Parameter, ...]:
        """What a client may set, narrowed to what the model has; without the family's own."""

    @abstractmethod
    def outputs(self, model: Model) -> tuple[Tensor, ...]:
        """What a client gets, before what all verbs answer."""

    @abstractmethod
    def forwarded(self, model: Model) -> tuple[Tensor, ...]:
        """What inference hands to postprocess."""

    def passed_on(self, model: Model) -> tuple[Tensor, ...]:
        """Those of `inputs` that postprocess gets too, as the client sent them."""
        return ()

    @abstractmethod
    def read(self, sent: Mapping[str, Sequence[Any]], given: Options, profile: Profile, model: Model) -> list[Part]:
        """What the model shall read, from the elements of each input; the items are the first part."""

    @abstractmethod
    def computed(self, model: Model) -> tuple[Tensor, ...]:
        """What forward passes may give for it."""

    @abstractmethod
    def needed(self, model: Model, options: Options) -> frozenset[str]:
        """What the forward pass must give."""

    @abstractmethod
    def sent(self, model: Model, options: Options) -> tuple[Tensor, ...]:
        """Those of `forwarded` that this request fills."""

    @abstractmethod
    def collect(self, model: Model, options: Options, rows: Sequence[Rows], num_pieces: Ints) -> Rows:
        """The tensors `forwarded`, of what the forward passes gave for each piece of each element of each part."""

    def input_name(self, tensor: Tensor) -> str:
        """What preprocess calls an input of this verb: a request says its verb by the ensemble that it came through."""
        return f"{self.name}_{tensor.name}"

    def num_items(self, parts: Sequence[Part]) -> int:
        return len(parts[0].elements)

    def is_query(self, options: Options, num_elements: int, num_items: int) -> list[bool]:
        """Of each element: is it one that others are found by?"""
        return [bool(options.get("is_query", False))] * num_elements

    def token_count(self, lengths: Ints, num_items: int, tensors: Rows) -> Ints:
        """int32 [items]; `lengths` are those of all pieces of all parts, `tensors` those `forwarded`."""
        return lengths[:num_items]

    def answering(self, model: Model) -> Answering:
        return Answering()

    def all_parameters(self, model: Model) -> Mapping[str, Parameter]:
        """By name, with the family's own."""
        return {parameter.name: parameter for parameter in (*self.parameters(model), *model.parameters)}


def common_outputs(model: Model) -> tuple[Tensor, ...]:
    """What every verb answers, behind its own."""
    return (*((NUM_PAGES, PAGE_NUMBERS) if model.reads_pages else ()), TOKEN_COUNT, TRUNCATED, TIMING_MS)


def _apart(model: Model) -> str:
    """Where profiles are served that this model's weights cannot."""
    names = ", ".join(f"{model.spec.model}.{profile}" for profile in model.spec.apart)
    return f"; models of their own are {names}" if names else ""


def common_parameters(model: Model) -> tuple[Parameter, ...]:
    """Those of every verb."""
    longest = CHARACTERS_PER_TOKEN * min(model.spec.max_sequence_length, LONGEST_INSTRUCTION)
    profiles = tuple(profile.name for profile in model.spec.profiles)
    return (
        Parameter(
            "instruction",
            str,
            max_characters=longest,
            for_prompt=True,
            doc="prompt put before each text, or before the query of a score",
        ),
        Parameter(
            "profile", str, profiles, for_prompt=True, hint=_apart(model), doc="named set of options of the model"
        ),
        *((LORA,) if model.takes_loras else ()),
        *((PAGES,) if model.reads_pages else ()),
    )
