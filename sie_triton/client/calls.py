"""Convert calls to requests and responses to results, for both clients. No I/O here."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

from sie_triton.client.arguments import checked_model, encoded_entities, encoded_labels, request_parameters
from sie_triton.client.fit import check_kinds, check_verb, input_names
from sie_triton.client.items import Bytes, encoded, encoded_item, is_one, listed, objects
from sie_triton.client.results import (
    encode_results,
    extract_results,
    id_of,
    output,
    score_entries,
    score_result,
    timing_of,
)
from sie_triton.client.types import EncodeOptions, ExtractOptions, ItemLike, ScoreOptions, ScoreResult
from sie_triton.contract import ITEMS, TASKS, VERBS, Verb
from sie_triton.contract.names import triton_name
from sie_triton.contract.tensors import ENTITIES, IMAGE, LABELS, QUERY, QUERY_IMAGE, TEXT, TOKEN_COUNT, Tensor
from sie_triton.errors import InputError

STEP_SUFFIXES = ("-preprocess", "-inference", "-postprocess")

# Limits of one request: about the default cost limit of a batch (16,384 tokens). The server would split a larger one.
PIECE_BYTES = 64 * 1024
PIECE_ITEMS = 512

# Size of a file in bytes of text: about the tokens that a model reads of it, plus a share of its bytes for sending.
FILE_BYTES, BYTES_A_BYTE = 2048, 256

# Field of an error that names an item of its request.
ITEM = re.compile(rf"({'|'.join((*ITEMS, ENTITIES.name, 'items'))})\[(\d+)\]")

# Tensors of the query of a score, by kind of input.
QUERIES = {TEXT.name: QUERY, IMAGE.name: QUERY_IMAGE}


def size_of(kind: str, element: bytes) -> int:
    """
    >>> size_of("text", b"four"), size_of("image", b""), size_of("image", b"1" * 25600)
    (4, 0, 2148)
    """
    if kind == TEXT.name or not element:
        return len(element)
    return FILE_BYTES + len(element) // BYTES_A_BYTE


def sizes(items: Mapping[str, Bytes]) -> list[int]:
    """Return the size of each item, summed over its kinds of input."""
    of_kinds = [[size_of(kind, element) for element in elements] for kind, elements in items.items()]
    return [sum(each) for each in zip(*of_kinds, strict=True)]


def pieces(sizes: Sequence[int], max_items: int = PIECE_ITEMS, max_bytes: int = PIECE_BYTES) -> list[slice]:
    """Return slices of consecutive items; each slice is sent as one request.

    >>> pieces([3, 3, 3, 9, 1], max_items=2, max_bytes=8)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    if not sizes:
        return []
    cuts, room = [0], max_bytes
    for i, size in enumerate(sizes):
        if i > cuts[-1] and (size > room or i - cuts[-1] == max_items):
            cuts.append(i)
            room = max_bytes
        room -= size
    return [slice(start, end) for start, end in zip(cuts, [*cuts[1:], len(sizes)], strict=True)]


def names_item(error: InputError) -> bool:
    """Return True if an item is at fault, and not the request."""
    return ITEM.match(error.field) is not None


def in_call(error: InputError, start: int) -> InputError:
    """Return the error of a request whose items start at this place of a call; it names the item's place in the call.

    >>> error = in_call(InputError.at("text[3]", "is empty"), 512)
    >>> str(error), error.field
    ('text[515]: is empty', 'text[515]')
    """
    found = ITEM.match(error.field)
    if not found or not start:
        return error
    place = f"{found[1]}[{int(found[2]) + start}]"
    moved = InputError(place + str(error).removeprefix(found[0]))
    moved.field = place + error.field[found.end() :]
    return moved


class ClientCall(ABC):
    """A call of `verb` with its items, split into requests. `query_bytes` is the size of a query, counted per item.

    `ensemble` is the model's name in Triton; the client replaces it if the verb has an ensemble of its own.
    """

    verb: ClassVar[Verb]

    def __init__(
        self, tritonclient: Any, model: str, items: Sequence[ItemLike], parameters: dict[str, Any], query_bytes: int = 0
    ) -> None:
        self._tritonclient = tritonclient
        self.ensemble = triton_name(checked_model(model))
        self._items = items
        self._encoded = encoded(items)
        self._parameters = parameters
        self.pieces = pieces([size + query_bytes for size in sizes(self._encoded)])

    def arguments(self, piece: slice) -> dict[str, Any]:
        """Return keyword arguments for `infer` of any of tritonclient's modules."""
        return {"model_name": self.ensemble, "inputs": self._inputs(piece), "parameters": self._parameters}

    @contextmanager
    def placing(self, piece: slice) -> Iterator[None]:
        """Raise an InputError of the request for `piece` with the item's place in the call."""
        try:
            yield
        except InputError as exc:
            raise in_call(exc, piece.start) from exc.__cause__

    @abstractmethod
    def results(self, responses: Iterable[Any]) -> Any:
        """Return the caller's result, from one response per piece: a list for a list of items."""

    def check(self, model: str, metadata: Any) -> None:
        """Raise Misfit if the model, according to the ensemble's `metadata`, does not take the inputs of this call."""
        names = input_names(metadata)
        check_verb(model, self.verb, names)
        fields = {kind: f"items[{first_of(elements)}].{kind}" for kind, elements in self._encoded.items()}
        check_kinds(model, names, ITEMS, fields)

    def _inputs(self, piece: slice) -> list[Any]:
        """Return the inputs of a piece, without files of a kind that none of its items has."""
        parts = {kind: elements[piece] for kind, elements in self._encoded.items()}
        return [self._input(ITEMS[kind], part) for kind, part in parts.items() if kind == TEXT.name or part.any()]

    def _input(self, tensor: Tensor, elements: Bytes) -> Any:
        made = self._tritonclient.InferInput(tensor.name, [len(elements)], tensor.dtype)
        made.set_data_from_numpy(elements)
        return made


class EncodeCall(ClientCall):
    """A call of `encode`."""

    verb = VERBS["encode"]

    def __init__(self, tritonclient: Any, model: str, items: Any, options: Mapping[str, Any]) -> None:
        self._is_single = is_one(items)
        parameters = request_parameters(self.verb.name, options, EncodeOptions)
        super().__init__(tritonclient, model, listed(items), parameters)

    def results(self, responses: Iterable[Any]) -> Any:
        both = zip(responses, self.pieces, strict=True)
        dtype = self._parameters.get("output_dtype", "float32")
        types = self._parameters.get("output_types", "")
        results = [
            result
            for response, piece in both
            for result in encode_results(response, self._items[piece], types.split(",") if types else None, dtype)
        ]
        return results[0] if self._is_single else results


class ScoreCall(ClientCall):
    """A call of `score`; the query is sent with each request."""

    verb = VERBS["score"]

    def __init__(self, tritonclient: Any, model: str, query: ItemLike, items: Any, options: Mapping[str, Any]) -> None:
        self._name, self._query = model, query
        self._encoded_query = encoded_item(query, "query")
        for kind in self._encoded_query:
            if kind not in QUERIES:
                raise InputError.at(f"query.{kind}", f"is not allowed in a query; give {' or '.join(QUERIES)}")
        parameters = request_parameters(self.verb.name, options, ScoreOptions)
        size = sum(map(size_of, self._encoded_query, self._encoded_query.values()))
        super().__init__(tritonclient, model, listed(items), parameters, size)

    def check(self, model: str, metadata: Any) -> None:
        super().check(model, metadata)
        fields = {kind: f"query.{kind}" for kind in self._encoded_query}
        check_kinds(model, input_names(metadata), QUERIES, fields)

    def _inputs(self, piece: slice) -> list[Any]:
        query = [self._input(QUERIES[kind], objects([each])) for kind, each in self._encoded_query.items()]
        return [*query, *super()._inputs(piece)]

    def results(self, responses: Iterable[Any]) -> ScoreResult:
        """Rank all items, from one response per piece."""
        if not self.pieces:
            return score_result(self._name, self._query, [])
        ids = [f"item-{i}" if id_of(item) is None else str(id_of(item)) for i, item in enumerate(self._items)]
        timings, entries, token_count = [], [], 0
        for response, piece in zip(responses, self.pieces, strict=True):
            timings.append(timing_of(response))
            entries += score_entries(response, ids[piece])
            token_count += int(output(response, TOKEN_COUNT).sum())
        entries.sort(key=lambda entry: -entry["score"])
        for rank, entry in enumerate(entries):
            entry["rank"] = rank
        timing = max(timings, key=lambda timing: timing["total_ms"])
        return score_result(self._name, self._query, entries) | ScoreResult(token_count=token_count, timing=timing)


class ExtractCall(ClientCall):
    """A call of `extract`; labels are sent with each request, known entities with their items."""

    verb = VERBS["extract"]

    def __init__(
        self, tritonclient: Any, model: str, items: Any, labels: Any, entities: Any, options: Mapping[str, Any]
    ) -> None:
        self._is_single = is_one(items)
        parameters = request_parameters(self.verb.name, options, ExtractOptions)
        given = listed(items)
        self._labels = encoded_labels(labels)
        known = [entities] if self._is_single and entities is not None else entities
        self._entities = encoded_entities(known, len(given))
        super().__init__(tritonclient, model, given, parameters, sum(map(len, self._labels)))

    def _inputs(self, piece: slice) -> list[Any]:
        inputs = super()._inputs(piece)
        if len(self._labels):
            inputs.append(self._input(LABELS, self._labels))
        if self._entities is not None:
            inputs.append(self._input(ENTITIES, self._entities[piece]))
        return inputs

    def results(self, responses: Iterable[Any]) -> Any:
        both = zip(responses, self.pieces, strict=True)
        results = [result for response, piece in both for result in extract_results(response, self._items[piece])]
        return results[0] if self._is_single else results


def first_of(elements: Bytes) -> int:
    """Return the index of the first element that is not empty; 0 if all are empty."""
    return next((i for i, element in enumerate(elements) if element), 0)


def own_ensemble(model: str, verb: Verb) -> str:
    """Return the name of a verb's own ensemble; the first verb of a model has none."""
    return f"{triton_name(model)}-{verb.name}"


def ensemble_of(model: str, verb: Verb, metadata: Any, *, has_own: bool) -> str:
    """Return the name of the ensemble that serves `verb`: its own, or the model's; Misfit if neither serves it.

    `metadata` is the metadata of the model's ensemble.
    """
    if has_own:
        return own_ensemble(model, verb)
    check_verb(model, verb, input_names(metadata))
    return triton_name(model)


def model_names(statistics: Any) -> list[str]:
    """Return the names of models, as clients call them, from Triton's statistics (JSON or protobuf).

    The statistics list all ready models and need no token.

    >>> model_names({"model_stats": [{"name": name} for name in ("org__m", "org__m-extract", "org__m-inference")]})
    ['org/m']
    """
    models = statistics["model_stats"] if isinstance(statistics, dict) else statistics.model_stats
    names = {model["name"] if isinstance(model, dict) else model.name for model in models}
    of_verbs = {f"{name}-{task}" for name in names for task in TASKS}
    return sorted(name.replace("__", "/", 1) for name in names - of_verbs if not name.endswith(STEP_SUFFIXES))
