"""client → preprocess → queue of inference: texts become packed tokens with an exact cost.

Here is where a model with too many requests in progress refuses more.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

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
from sie_triton.errors import Cancelled, InputError, SIEError
from sie_triton.families import features, load_tokenizer
from sie_triton.families.base import Tokens
from sie_triton.inputs.prompt import Prompt, prompt_of
from sie_triton.inputs.texts import Query, Texts, decode, only, reading
from sie_triton.parameters import model_parameters, profile_of
from sie_triton.records.status import StatusReader, StatusWriter
from sie_triton.records.tickets import RequestLimit
from sie_triton.scheduling import COST_FUNCTIONS
from sie_triton.spec import ModelSpec
from sie_triton.stages.open_requests import deadline_ns
from sie_triton.stages.request import DEFERRED, Answer, Outputs, Request
from sie_triton.stages.seal import Seal
from sie_triton.stages.stage import ColdStage, internal_error
from sie_triton.weights import locate
from sie_triton.weights.locate import TOKENIZER_FILES

if TYPE_CHECKING:
    from sie_triton.inputs.tokenizer import TextTokenizer

NO_IDS: npt.NDArray[np.int32] = np.zeros(0, np.int32)


class Preprocess(ColdStage["TextTokenizer"]):
    name = "preprocess"

    def __init__(self, spec: ModelSpec, status: StatusWriter) -> None:
        self._spec = spec
        limit = spec.runtime.max_concurrent_requests
        self._limit = RequestLimit(limit, status, StatusReader(status.directory, status.model, "inference"))
        self._parameters = {task: model_parameters(spec, task) for task in spec.tasks}
        self._seal = Seal(status.directory, is_open=spec.runtime.open_steps)
        self._features = [feature.name for feature in features(spec)]
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
        read = [self._read(request, arrived, loaded) for request in requests]
        small = [texts for texts in read if isinstance(texts, Texts) and not texts.is_bulk]
        tokenized = self._tokenize(loaded, small)
        answers: list[Answer] = []
        for request, texts in zip(requests, read, strict=True):
            if isinstance(texts, SIEError):
                answers.append(texts)
            elif texts.is_bulk:
                self.open.add(request, deadline_ns(arrived, request.timeout_us))
                self.background.submit(self._tokenize_bulk(loaded, request, texts), partial(self._give_up, request))
                answers.append(DEFERRED)
            else:
                answers.append(tokenized[id(texts)])
        return answers

    def _read(self, request: Request, arrived_ns: int, tokenizer: "TextTokenizer") -> Texts | SIEError:
        try:
            query = request.tensor(QUERY.name) if "score" in self._parameters else None
            if query is None and "encode" in self._parameters:
                return self._read_encode(request, arrived_ns, tokenizer)
            return self._read_score(request, only(decode(query, QUERY.name)), arrived_ns, tokenizer)
        except SIEError as exc:
            return exc
        except Exception as exc:
            return internal_error(self.name, exc)

    def _read_encode(self, request: Request, arrived_ns: int, tokenizer: "TextTokenizer") -> Texts:
        options = check_parameters(request.parameters, self._parameters["encode"])
        texts = decode(request.tensor(TEXT.name), TEXT.name)
        return Texts(texts, arrived_ns, self._prompt(tokenizer, options), bool(options.get("is_query", False)))

    def _read_score(self, request: Request, query: str, arrived_ns: int, tokenizer: "TextTokenizer") -> Texts:
        options = check_parameters(request.parameters, self._parameters["score"])
        texts = decode(request.tensor(TEXT.name), TEXT.name)
        if self._spec.scores_pairs:
            told = options.get("instruction", profile_of(self._spec, options).instruction or None)
            instruction = None if told is None else str(told)
            return Texts(texts, arrived_ns, query=Query(query, instruction=instruction, in_pairs=True))
        of_texts = {name: value for name, value in options.items() if name == "profile"}
        prompt = self._prompt(tokenizer, {**of_texts, "is_query": False})
        return Texts(
            texts, arrived_ns, prompt, query=Query(query, self._prompt(tokenizer, {**options, "is_query": True}))
        )

    def _prompt(self, tokenizer: "TextTokenizer", options: Mapping[str, Any]) -> Prompt:
        return prompt_of(tokenizer.prompts, tokenizer.default_prompt, profile_of(self._spec, options), options)

    def _tokenize(self, tokenizer: "TextTokenizer", requests: list[Texts]) -> dict[int, Answer]:
        """By `id` of the request; one tokenizer call for all of one role."""
        answers: dict[int, Answer] = {}
        for is_query in (False, True):
            group = [each for each in requests if (each.is_query and tokenizer.has_roles) == is_query]
            if group:
                answers |= zip(map(id, group), self._tokenize_alike(tokenizer, group, is_query), strict=True)
        return answers

    def _tokenize_alike(self, tokenizer: "TextTokenizer", requests: list[Texts], is_query: bool) -> list[Answer]:
        try:
            items = [each.items(tokenizer, each.question(tokenizer), each.texts) for each in requests]
            tokens = tokenizer.encode([item for group in items for item in group], is_query=is_query)
        except BaseException as exc:
            if len(requests) == 1:
                return [self._blame(tokenizer, requests[0], exc)]
            return [answer for each in requests for answer in self._tokenize_alike(tokenizer, [each], is_query)]
        parts = tokens.split([len(request.texts) for request in requests])
        return [self._answer_of(tokenizer, each, part) for each, part in zip(requests, parts, strict=True)]

    def _tokenize_bulk(self, tokenizer: "TextTokenizer", request: Request, texts: Texts) -> Iterator[None]:
        parts: list[Tokens] = []
        with reading("query"):
            question = texts.question(tokenizer)
        for chunk in texts.chunks(question):
            if self.open.is_cancelled(request):
                self.open.reply(request, Cancelled("cancelled by the client"))
            if request not in self.open:
                return
            try:
                parts.append(tokenizer.encode(texts.items(tokenizer, question, chunk), is_query=texts.is_query))
            except BaseException as exc:
                raise self._blame(tokenizer, texts, exc) from exc
            yield
        self.open.reply(request, self._answer_of(tokenizer, texts, Tokens.join(parts)))

    def _give_up(self, request: Request, error: BaseException) -> None:
        self.open.reply(request, error if isinstance(error, SIEError) else internal_error(self.name, error))

    def _blame(self, tokenizer: "TextTokenizer", request: Texts, error: BaseException) -> SIEError:
        """What to say where the texts of a request could not be tokenized together."""
        try:
            with reading("query"):
                question = request.question(tokenizer)
            for i, text in enumerate(request.texts):
                with reading(f"text[{i}]"):
                    tokenizer.encode(request.items(tokenizer, question, [text]), is_query=request.is_query)
        except InputError as exc:
            return exc
        except BaseException as exc:
            return internal_error(self.name, exc)
        return internal_error(self.name, error)

    def _answer_of(self, tokenizer: "TextTokenizer", request: Texts, tokens: Tokens) -> Outputs | SIEError:
        try:
            return self._outputs(tokenizer, request, tokens)
        except SIEError as exc:
            return exc
        except BaseException as exc:
            return internal_error(self.name, exc)

    def _outputs(self, tokenizer: "TextTokenizer", request: Texts, tokens: Tokens) -> Outputs:
        if not tokens.lengths.all():
            empty = int(np.flatnonzero(tokens.lengths == 0)[0])
            raise InputError(f"text[{empty}]: makes no token of this model; send a text that does")
        prompts, query_ids = [request.prompt], NO_IDS
        if request.query is not None and not request.query.in_pairs:
            prompts.append(request.query.prompt)
            with reading("query"):
                query_ids = tokenizer.encode([prompts[1].around(request.query.text)], is_query=True).input_ids
            if not len(query_ids):
                raise InputError("query: makes no token of this model; send a text that does")
        lengths = np.append(tokens.lengths, np.int32(len(query_ids)))
        cost = min(int(self._cost(lengths).sum()), np.iinfo(np.int32).max)
        known = {
            INPUT_IDS.name: tokens.input_ids,
            TOKEN_TYPE_IDS.name: tokens.type_ids,
            LENGTHS.name: tokens.lengths,
            PROMPT_TOKENS.name: np.array([tokenizer.prompt_tokens(prompt.before) for prompt in prompts], np.int32),
            QUERY_IDS.name: query_ids,
        }
        stamps = [request.arrived_ns, monotonic_ns(), self.status.next_ticket()]
        sent = {name: known[name] for name in self._features}
        return {
            **sent,
            COST.name: np.array([cost], np.int32),
            STAMPS.name: self._seal.stamps(stamps, sent.values()),
        }
