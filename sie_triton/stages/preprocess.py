"""client → preprocess → queue of inference: texts become packed tokens with an exact cost.

Here is where a model with too many requests in progress refuses more.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sie_triton.adapters import features, load_tokenizer
from sie_triton.adapters.base import Text, Tokens
from sie_triton.batching import COST_FUNCTIONS
from sie_triton.contract import (
    COST,
    INPUT_IDS,
    LENGTHS,
    PROMPT_TOKENS,
    QUERY,
    QUERY_IDS,
    STAMPS,
    TEXT,
    TOKEN_TYPE_IDS,
    check_parameters,
)
from sie_triton.errors import InputError, SIEError
from sie_triton.parameters import model_parameters, profile_of
from sie_triton.spec import ModelSpec
from sie_triton.stages.limit import RequestLimit
from sie_triton.stages.open_requests import deadline_ns
from sie_triton.stages.prompt import Prompt, prompt_of
from sie_triton.stages.request import DEFERRED, Answer, Outputs, Request
from sie_triton.stages.stage import ColdStage, internal_error
from sie_triton.stages.status import StatusReader, StatusWriter
from sie_triton.weights import locate
from sie_triton.weights.locate import TOKENIZER_FILES

if TYPE_CHECKING:
    from sie_triton.adapters.tokenizer import TextTokenizer

# A request past either limit is tokenized beside the others, a chunk at a time.
BULK_TEXTS = 128
BULK_BYTES = 128 * 1024
CHUNK_BYTES = 32 * 1024


Ints = npt.NDArray[np.int32]

NO_IDS: Ints = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Texts:
    """The validated texts of one request, prompt included; query_ids int32 [k] where they are scored against a query.

    `num_bytes` is that of the longest way to write them all out, a query once for each text it is paired with.
    """

    texts: list[Text]
    num_bytes: int
    arrived_ns: int
    is_query: bool = False
    prompt_tokens: int = 0
    query_ids: Ints = field(default_factory=lambda: NO_IDS)

    @property
    def is_bulk(self) -> bool:
        return len(self.texts) > BULK_TEXTS or self.num_bytes > BULK_BYTES


class Preprocess(ColdStage["TextTokenizer"]):
    name = "preprocess"

    def __init__(self, spec: ModelSpec, status: StatusWriter) -> None:
        self._spec = spec
        limit = spec.runtime.max_concurrent_requests
        self._limit = RequestLimit(limit, status, StatusReader(status.directory, status.model, "inference"))
        self._parameters = {task: model_parameters(spec, task) for task in spec.tasks}
        self._features = frozenset(feature.name for feature in features(spec))
        self._cost = COST_FUNCTIONS[spec.batch_cost]
        if spec.runtime.device == "cpu":
            # The cores belong to the forward pass; the tokenizer's own threads would only wait for them.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        super().__init__(status, limit)

    def room(self) -> int:
        return self._limit.room()

    def deadline_ns(self, request: Request) -> int:
        return deadline_ns(monotonic_ns(), request.timeout_us)

    def load(self) -> "TextTokenizer":
        spec = self._spec
        directory = locate(spec.weights, allow_hub=spec.runtime.allow_hub, patterns=TOKENIZER_FILES)
        return load_tokenizer(spec, directory)

    def answer(self, loaded: "TextTokenizer", requests: Sequence[Request]) -> list[Answer]:
        arrived = monotonic_ns()
        read = [self._read(loaded, request, arrived) for request in requests]
        small = [texts for texts in read if isinstance(texts, Texts) and not texts.is_bulk]
        tokenized = self._tokenize(loaded, small)
        answers: list[Answer] = []
        for request, texts in zip(requests, read, strict=True):
            if isinstance(texts, SIEError):
                answers.append(texts)
            elif texts.is_bulk:
                self.open.add(request, deadline_ns(arrived, request.timeout_us))
                self.background.submit(self._tokenize_bulk(loaded, request, texts))
                answers.append(DEFERRED)
            else:
                answers.append(tokenized[id(texts)])
        return answers

    def _read(self, tokenizer: "TextTokenizer", request: Request, arrived_ns: int) -> Texts | SIEError:
        try:
            query = request.tensor(QUERY.name) if "score" in self._parameters else None
            if query is None and "encode" in self._parameters:
                return self._read_encode(tokenizer, request, arrived_ns)
            return self._read_score(tokenizer, request, only(decode(query, QUERY.name)[0]), arrived_ns)
        except SIEError as exc:
            return exc

    def _read_encode(self, tokenizer: "TextTokenizer", request: Request, arrived_ns: int) -> Texts:
        options = check_parameters(request.parameters, self._parameters["encode"])
        prompt = self._prompt(tokenizer, options)
        texts, num_bytes = decode(request.tensor(TEXT.name), TEXT.name)
        return Texts(
            [prompt.around(text) for text in texts],
            num_bytes,
            arrived_ns,
            is_query=bool(options.get("is_query", False)),
            prompt_tokens=tokenizer.prompt_tokens(prompt.before),
        )

    def _read_score(self, tokenizer: "TextTokenizer", request: Request, query: str, arrived_ns: int) -> Texts:
        options = check_parameters(request.parameters, self._parameters["score"])
        texts, num_bytes = decode(request.tensor(TEXT.name), TEXT.name)
        if self._spec.scores_pairs:
            instruction = options.get("instruction", profile_of(self._spec, options).instruction)
            pairs = tokenizer.pairs(query, texts, str(instruction))
            return Texts(pairs, num_bytes + len(texts) * len(query), arrived_ns)
        query = self._prompt(tokenizer, {**options, "is_query": True}).around(query)
        of_texts = {name: value for name, value in options.items() if name == "profile"}
        prompt = self._prompt(tokenizer, {**of_texts, "is_query": False})
        query_ids = tokenizer.encode([query], is_query=True).input_ids
        return Texts([prompt.around(text) for text in texts], num_bytes, arrived_ns, query_ids=query_ids)

    def _prompt(self, tokenizer: "TextTokenizer", options: Mapping[str, Any]) -> Prompt:
        return prompt_of(tokenizer.prompts, tokenizer.default_prompt, profile_of(self._spec, options), options)

    def _tokenize(self, tokenizer: "TextTokenizer", requests: list[Texts]) -> dict[int, Answer]:
        """By `id` of the request; one tokenizer call for all of one role."""
        answers: dict[int, Answer] = {}
        for is_query in (False, True):
            group = [each for each in requests if (each.is_query and tokenizer.has_roles) == is_query]
            answers |= zip(map(id, group), self._tokenize_alike(tokenizer, group, is_query), strict=True)
        return answers

    def _tokenize_alike(self, tokenizer: "TextTokenizer", requests: list[Texts], is_query: bool) -> Iterator[Answer]:
        if not requests:
            return
        try:
            tokens = tokenizer.encode([text for each in requests for text in each.texts], is_query=is_query)
        except Exception as exc:
            yield from [internal_error(self.name, exc)] * len(requests)
            return
        parts = tokens.split([len(request.texts) for request in requests])
        yield from (self._outputs(request, part) for request, part in zip(requests, parts, strict=True))

    def _tokenize_bulk(self, tokenizer: "TextTokenizer", request: Request, texts: Texts) -> Iterator[None]:
        parts: list[Tokens] = []
        try:
            for chunk in chunks(texts.texts):
                if request not in self.open:
                    return
                parts.append(tokenizer.encode(chunk, is_query=texts.is_query))
                yield
        except Exception as exc:
            self.open.reply(request, internal_error(self.name, exc))
            return
        self.open.reply(request, self._outputs(texts, Tokens.join(parts)))

    def _outputs(self, request: Texts, tokens: Tokens) -> Outputs:
        lengths = np.append(tokens.lengths, np.int32(len(request.query_ids)))
        cost = min(int(self._cost(lengths).sum()), np.iinfo(np.int32).max)
        known = {
            INPUT_IDS.name: tokens.input_ids,
            TOKEN_TYPE_IDS.name: tokens.type_ids,
            LENGTHS.name: tokens.lengths,
            PROMPT_TOKENS.name: np.array([request.prompt_tokens], np.int32),
            QUERY_IDS.name: request.query_ids,
        }
        return {
            **{name: array for name, array in known.items() if name in self._features},
            COST.name: np.array([cost], np.int32),
            STAMPS.name: np.array([request.arrived_ns, monotonic_ns(), self.status.next_ticket()], np.int64),
        }


def decode(array: npt.NDArray[Any] | None, name: str) -> tuple[list[str], int]:
    """The input `name`, object [1, n] of bytes → n strings and their size in bytes."""
    if array is None:
        raise InputError(f"{name}: missing; it is a required input")
    if array.ndim != 2 or array.shape[0] != 1:
        raise InputError(f"{name}: has shape {list(array.shape)}; send a plain vector [n]")
    if array.shape[1] == 0:
        raise InputError(f"{name}: is empty; send at least one item")
    texts = []
    for i, raw in enumerate(array[0]):
        try:
            texts.append(raw.decode())
        except UnicodeDecodeError as exc:
            raise InputError(
                f"{name}[{i}]: not valid UTF-8 (byte 0x{raw[exc.start]:02x} at {exc.start}); send UTF-8 text"
            ) from exc
    return texts, sum(map(len, array[0]))


def only(queries: list[str]) -> str:
    """The one query of a request to score."""
    if len(queries) != 1:
        raise InputError(f"query: has {len(queries)} elements; send one, and its texts as text")
    return queries[0]


def chunks(texts: list[Text]) -> Iterator[list[Text]]:
    """Consecutive pieces of roughly CHUNK_BYTES, at least one text each."""
    chunk: list[Text] = []
    size = 0
    for text in texts:
        chunk.append(text)
        size += len(text) if isinstance(text, str) else sum(map(len, text))
        if size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
