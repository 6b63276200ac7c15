"""Base class of the verbs. A verb is one module beside this one, and one line in the package."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from sie_triton.contract.arrays import Ints
from sie_triton.contract.limits import LIMITS
from sie_triton.contract.model import Computed, Model, Part, Rows
from sie_triton.contract.parameters import Parameter, ParameterValue
from sie_triton.contract.spec import Profile
from sie_triton.contract.tensors import ITEMS, NUM_PAGES, PAGE_NUMBERS, TEXT, TIMING_MS, TOKEN_COUNT, TRUNCATED, Tensor
from sie_triton.errors import InputError

# Maximum length of an instruction: characters per token that the model reads, and tokens. The model reads the
# instruction with every text: a longer one would leave no room for the texts, and cost its length for each of them.
CHARACTERS_PER_TOKEN = 16

PAGES = Parameter(
    "pages",
    str,
    max_characters=1000,
    for_prompt=True,
    doc="pages of PDFs to read, as in 1-3,8 or 5-, each an item; default: all",
)

TRUNCATION_SIDE = Parameter(
    "truncation_side",
    str,
    ("left", "right"),
    for_prompt=True,
    doc="side on which long texts are cut; default: the model's own",
)

CHUNK_TOKENS = Parameter(
    "chunk_tokens",
    int,
    minimum=1,
    maximum=1_000_000,
    for_prompt=True,
    doc="split each text into chunks of at most so many tokens, with prompt; each becomes an item",
)

CHUNK_OVERLAP = Parameter(
    "chunk_overlap",
    int,
    minimum=0,
    maximum=1_000_000,
    for_prompt=True,
    doc="most tokens that a chunk shares with the one before, up to half of it; default: 0",
)

LATE_CHUNKING = Parameter(
    "late_chunking",
    bool,
    doc="true: pool the chunks of a text after reading it whole (arXiv 2409.04701)",
)

LORA = Parameter(
    "lora",
    str,
    max_characters=LIMITS.max_lora_characters,
    doc="LoRA adapter to apply; overrides the profile's; empty: no adapter",
)

# Name of the items of a model that reads several kinds.
ITEM = "items"

Options = Mapping[str, ParameterValue]


class Answering:
    """Postprocess's side of a verb, one object per process. Each request has its own `Computed`."""

    def prepare(self, requests: Sequence[Computed]) -> None:
        """Do work that is cheaper for all requests together. If it raises, it is called again for each alone."""

    def outputs(self, request: Computed) -> Rows:
        """Return every tensor that the verb declares for the model.

        Raise InputError if the request is at fault; any other exception is a fault of the server.
        """
        return request.tensors


class Verb(ABC):
    """A task of models. Stateless; any thread may call any method."""

    name: ClassVar[str]

    @abstractmethod
    def example(self, model: Model) -> Mapping[str, Sequence[str]]:
        """Return the inputs of an example request: tensor → values."""

    @abstractmethod
    def inputs(self, kinds: Sequence[str]) -> tuple[Tensor, ...]:
        """Return the tensors that a client sends to a model that reads inputs of these kinds."""

    @abstractmethod
    def parameters(self, model: Model) -> tuple[Parameter, ...]:
        """Return the request parameters, narrowed to what the model supports, without the family's own."""

    @abstractmethod
    def outputs(self, model: Model) -> tuple[Tensor, ...]:
        """Return the tensors that a client gets, without the `common_outputs`, which follow them."""

    @abstractmethod
    def forwarded(self, model: Model) -> tuple[Tensor, ...]:
        """Return the tensors that inference sends to postprocess."""

    def passed_on(self, model: Model) -> tuple[Tensor, ...]:
        """Return the `inputs` that postprocess gets too, as the client sent them."""
        return ()

    @abstractmethod
    def read(self, sent: Mapping[str, Sequence[Any]], given: Options, profile: Profile, model: Model) -> list[Part]:
        """Return the parts that the model reads, from the elements of each input. The first part holds the items."""

    @abstractmethod
    def computed(self, model: Model) -> tuple[Tensor, ...]:
        """Return the tensors that a forward pass may compute for this verb."""

    @abstractmethod
    def needed(self, model: Model, options: Options) -> frozenset[str]:
        """Return the names of the outputs that the forward pass must compute for a request."""

    @abstractmethod
    def sent(self, model: Model, options: Options) -> tuple[Tensor, ...]:
        """Return the `forwarded` tensors that this request fills."""

    @abstractmethod
    def collect(self, model: Model, options: Options, rows: Sequence[Rows], num_pieces: Ints) -> Rows:
        """Return the `forwarded` tensors, made from the rows of each piece of each element of each part."""

    def instruction(self, given: Options, profile: Profile) -> str | None:
        """Return the instruction of a request, else that of its profile; None if neither has one."""
        found = given.get("instruction", profile.instruction)
        return None if found is None else str(found)

    def input_name(self, tensor: Tensor) -> str:
        """Return preprocess's name of an input, which tells through which verb's ensemble a request came."""
        return f"{self.name}_{tensor.name}"

    def num_items(self, parts: Sequence[Part]) -> int:
        return len(parts[0].elements)

    def is_query(self, options: Options, num_elements: int, num_items: int) -> list[bool]:
        """Return for each element whether it is a query."""
        return [bool(options.get("is_query", False))] * num_elements

    def token_count(self, lengths: Ints, num_items: int, tensors: Rows) -> Ints:
        """Return the tokens of each item, int32 [items].

        `lengths`: of all pieces of all parts, int32; `tensors`: the `forwarded` ones.
        """
        return lengths[:num_items]

    def answering(self, model: Model) -> Answering:
        return Answering()

    def all_parameters(self, model: Model) -> Mapping[str, Parameter]:
        """Return the request parameters by name, including the family's own."""
        return {parameter.name: parameter for parameter in (*self.parameters(model), *model.parameters)}


def common_outputs(model: Model) -> tuple[Tensor, ...]:
    """Return the output tensors of every verb, which follow its own."""
    return (*((NUM_PAGES, PAGE_NUMBERS) if model.reads_pages else ()), TOKEN_COUNT, TRUNCATED, TIMING_MS)


def _apart(model: Model) -> str:
    """Return a hint that lists the profiles which need other weights and are served as models; empty if none."""
    names = ", ".join(f"{model.spec.model}.{profile}" for profile in model.spec.apart)
    return f"; separate models are {names}" if names else ""


def common_parameters(model: Model) -> tuple[Parameter, ...]:
    """Return the request parameters of every verb."""
    longest = CHARACTERS_PER_TOKEN * min(model.spec.max_sequence_length, LIMITS.max_instruction_tokens)
    profiles = tuple(profile.name for profile in model.spec.profiles)
    return (
        Parameter(
            "instruction",
            str,
            max_characters=longest,
            for_prompt=True,
            doc="encode: prompt before each text, or {instruction} in the profile's template; score: prompt before the "
            "query; extract: question or prompt, for families that read one",
        ),
        Parameter(
            "profile",
            str,
            profiles,
            for_prompt=True,
            hint=_apart(model),
            doc="named set of defaults in the model file",
        ),
        *((LORA,) if model.takes_loras else ()),
        *((PAGES,) if model.reads_pages else ()),
    )


def item_tensors(kinds: Sequence[str]) -> tuple[Tensor, ...]:
    """Return the input tensors of items of these kinds; all of them are optional if there are several."""
    tensors = tuple(ITEMS[kind] for kind in kinds)
    return tensors if len(tensors) == 1 else tuple(replace(tensor, optional=True) for tensor in tensors)


def items_of(sent: Mapping[str, Sequence[Any]], kinds: Sequence[str]) -> tuple[str, Sequence[Any]]:
    """Return the name of the items, and the items.

    If the model reads one kind of input, an item is its element. If it reads several, an item maps kinds to elements,
    without the empty ones; an item without elements is an empty text. Raise InputError if there are no items, if the
    inputs differ in length, or if an item is empty and cannot be an empty text: no texts are sent, or files are sent
    and all of them are empty.
    """
    if len(kinds) == 1:
        name = ITEMS[kinds[0]].name
        return name, sent[name]
    given = {kind: sent[ITEMS[kind].name] for kind in kinds if sent[ITEMS[kind].name]}
    if not given:
        raise InputError.at(" and ".join(kinds), "are empty; send at least one item")
    counts = {kind: len(elements) for kind, elements in given.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{kind} has {count} elements" for kind, count in counts.items())
        raise InputError(f"{told}; send the same number of each, with an empty element where an item has none")
    where = ITEM if len(given) > 1 else next(iter(given))
    files = [element for kind, elements in given.items() if kind != TEXT.name for element in elements]
    takes_blank = TEXT.name in given and (not files or any(map(len, files)))
    items = [dict(zip(given, elements, strict=True)) for elements in zip(*given.values(), strict=True)]
    return ITEM, [without_empty(item, f"{where}[{i}]", takes_blank) for i, item in enumerate(items)]


def without_empty(item: Mapping[str, Any], where: str, takes_blank: bool) -> Mapping[str, Any]:
    """Return an item without its empty elements. If all are empty: an empty text, or InputError at `where`."""
    found = {kind: element for kind, element in item.items() if len(element)}
    if not found and not takes_blank:
        raise InputError.at(where, f"is empty; send {' or '.join(item)}")
    return found or {TEXT.name: ""}
