"""Routes of Hugging Face's text-embeddings-inference, which serves a single model, so that requests name none."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from starlette.routing import Route

from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import TEXT
from sie_triton.doors import rerank
from sie_triton.doors.body_codec import JSON
from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest, Handler, get, post
from sie_triton.doors.failures import Dialect, Failure
from sie_triton.doors.fields import Body, check_query
from sie_triton.doors.json_dialects import answered, cut_by, encoded, entries_of, in_order, items_of
from sie_triton.doors.model_choice import CLASSES, DENSE_VECTORS, MULTIVECTORS, SCORES, SPARSE_VECTORS, Capable
from sie_triton.doors.openapi import Document, failures, operation
from sie_triton.doors.openapi_dialects import QUERY, TEXTS, Operation
from sie_triton.doors.response_bodies import sie_timing, timing_of
from sie_triton.doors.schemas import (
    BOOLEAN,
    INTEGER,
    NUMBER,
    NUMBERS,
    STRING,
    Schema,
    fields,
    optional,
    record,
    several,
)
from sie_triton.doors.tei_bodies import DIRECTION, Decode, Embed, Predict, Rerank, Similarity, Tokenize, is_alone
from sie_triton.doors.tokenizing import Tokenizers, check_size, decoded, tokenized
from sie_triton.errors import DeadlinePassed, LoadError
from sie_triton.settings import words

TOKENS_HEADER = "X-Compute-Tokens"

# The API's types of error by status; all others are VALIDATION.
TYPES = {424: "Backend", 429: "Overloaded", 503: "Unhealthy", 504: "Unhealthy"}
VALIDATION = "Validation"
STATUSES = {"400": "422", "404": "424", "502": "424"}

FAILURE = record(error=STRING, error_type=STRING)
ID = INTEGER | {"minimum": 0}
TOKEN = record(id=ID, text=STRING, special=BOOLEAN, start=optional(ID), stop=optional(ID))
CLASSIFIED = several(record(score=NUMBER, label=STRING))
WEIGHT = record(index=INTEGER, value=NUMBER)
RANK = fields({"index": INTEGER, "score": NUMBER, "text": STRING}, "index", "score")


def routes(door: Door) -> list[Route]:
    tei, given = Tei(Capable(door), Tokenizers(door.settings.status_dir)), {"inputs": TEXTS}
    compared = {"inputs": {"source_sentence": QUERY, "sentences": TEXTS}}
    classes = {"anyOf": [CLASSIFIED, several(CLASSIFIED)]}
    info = operation("The model, in text-embeddings-inference's format.", answer={"type": "object"}, error=FAILURE)

    def answering(handler: Handler, document: Document | None = None) -> DoorEndpoint:
        told = document and partial(_document, document)
        return DoorEndpoint(door, handler, dialect=TEI, types=[JSON], document=told)

    def posted(
        handler: Handler, body: type[Body], what: str, example: Schema, answer: Schema, by: str = DENSE_VECTORS
    ) -> Route:
        summary = f"{what} of SIE_DOOR_TEI_MODEL, in text-embeddings-inference's format."
        document = Operation(body, summary, example, answer, FAILURE, by).document_of_one
        limits = door.settings.door_max_items, words(door.settings.door_tei_model)
        name = handler.__name__
        return post(f"/{name}", answering(handler, partial(document, *limits)), f"tei_{name}")

    return [
        post("/", answering(tei.by_model), "tei_"),
        posted(tei.embed, Embed, "Dense vectors", given, several(NUMBERS)),
        posted(tei.embed_all, Embed, "A vector for each token", given, several(several(NUMBERS)), MULTIVECTORS),
        posted(tei.embed_sparse, Embed, "Sparse vectors", given, several(several(WEIGHT)), SPARSE_VECTORS),
        posted(tei.similarity, Similarity, "Cosine similarities", compared, NUMBERS),
        posted(tei.rerank, Rerank, "Scores", {"query": QUERY, "texts": TEXTS}, several(RANK), SCORES),
        posted(tei.predict, Predict, "Classes", {"inputs": TEXTS[0]}, classes, CLASSES),
        posted(tei.tokenize, Tokenize, "Tokens of texts", given, several(several(TOKEN))),
        posted(tei.decode, Decode, "Texts of token ids", {"ids": [[0]]}, several(STRING)),
        get("/info", answering(tei.info, info), "tei_info"),
    ]


def _document(document: Document, specs: Sequence[ModelSpec]) -> Schema:
    """Return a document with the statuses of the API."""
    made = document(specs)
    responses = {STATUSES.get(status, status): told for status, told in made["responses"].items()}
    return {**made, "responses": responses | failures("429", schema=FAILURE)}


class Tei:
    """Handlers of the routes."""

    def __init__(self, capable: Capable, tokenizers: Tokenizers) -> None:
        self._capable, self._tokenizers = capable, tokenizers

    async def by_model(self, request: DoorRequest) -> Answer:
        """Answer as the route for the kind of result that the models return."""
        what, _ = await self._capable.default()
        return await {
            DENSE_VECTORS: self.embed,
            SPARSE_VECTORS: self.embed_sparse,
            SCORES: self.rerank,
            CLASSES: self.predict,
            MULTIVECTORS: self.embed_all,
        }[what](request)

    async def embed(self, request: DoorRequest) -> Answer:
        results = await self._embedded(request, "dense", DENSE_VECTORS)
        return _told(request, [result["dense"] for result in results], results)

    async def embed_all(self, request: DoorRequest) -> Answer:
        results = await self._embedded(request, "multivector", MULTIVECTORS)
        return _told(request, [result["multivector"] for result in results], results)

    async def embed_sparse(self, request: DoorRequest) -> Answer:
        results = await self._embedded(request, "sparse", SPARSE_VECTORS)
        return _told(request, sparse_answer(results), results)

    async def similarity(self, request: DoorRequest) -> Answer:
        wanted = Similarity.of(request)
        texts = [*wanted.inputs.sentences, wanted.inputs.source_sentence]
        results = await self._encoded(request, wanted, texts, "dense", DENSE_VECTORS)
        wanted.reading.check_lengths(results[:-1], "inputs.sentences")
        wanted.reading.check_lengths(results[-1:], "inputs.source_sentence")
        *vectors, source = [result["dense"] for result in results]
        return _told(request, np.stack(vectors) @ source, results)

    async def rerank(self, request: DoorRequest) -> Answer:
        """Answer TEI's clients, and those that send Cohere's or Jina's body to this path."""
        if isinstance(request.content, dict) and "documents" in request.content:
            request.dialect = rerank.COHERE
            return await rerank.rerank("1", request)
        wanted = Rerank.of(request)
        check_query(wanted.query, wanted.texts, "query", request.door.settings.door_max_body_bytes)
        items, query = items_of(wanted.texts), {TEXT.name: wanted.query}
        parameters, spec = wanted.options(), await self._capable.spec(SCORES)
        options = cut_by(spec, parameters, DIRECTION)
        result = await request.door.backend.score(spec.model, query, items, request.seconds, options)
        wanted.check_lengths(entries_of(result), "texts")
        headers = {TOKENS_HEADER: str(result["token_count"])}
        return answered(request, rerank_answer(wanted, in_order(result)), sie_timing(result["timing"]), headers)

    async def predict(self, request: DoorRequest) -> Answer:
        wanted = Predict.of(request)
        parameters, spec = wanted.options(), await self._capable.spec(CLASSES)
        options, items = cut_by(spec, parameters, DIRECTION), items_of(wanted.inputs)
        results = await request.door.backend.extract(spec.model, items, [], None, request.seconds, options)
        classes = [[{"score": each["score"], "label": each["label"]} for each in r["classifications"]] for r in results]
        return _told(request, classes[0] if is_alone(request.content["inputs"]) else classes, results)

    async def tokenize(self, request: DoorRequest) -> Answer:
        wanted = Tokenize.of(request)
        check_size("inputs", sum(map(len, wanted.inputs)))
        act = partial(tokenized, texts=wanted.inputs, is_special=wanted.add_special_tokens is not False)
        return await self._by_tokenizer(request, act)

    async def decode(self, request: DoorRequest) -> Answer:
        wanted = Decode.of(request)
        act = partial(decoded, rows=wanted.ids, skips_special=wanted.skip_special_tokens is not False)
        return await self._by_tokenizer(request, act)

    async def _by_tokenizer(self, request: DoorRequest, act: Callable[[Any], Any]) -> Answer:
        """Answer with the result of `act`, given the model's tokenizer."""
        try:
            async with asyncio.timeout(request.seconds):
                return Answer(await self._tokenizers.use(await self._tokenizer(request), act), JSON, {})
        except TimeoutError as exc:
            raise DeadlinePassed("timeout: passed while the tokenizer was loaded or used") from exc

    async def _tokenizer(self, request: DoorRequest) -> Path:
        """Return where the model's tokenizer is, which its first request loads."""
        what, spec = await self._capable.default()
        if not request.door.backend.is_beside_server:
            raise Failure("no_route", f"{request.url}: a gateway has no tokenizers; call the door of a server")
        if (found := self._tokenizers.find(spec)) is None:
            await self._wake(request, what, spec)
            found = self._tokenizers.find(spec)
        if found is None:
            raise LoadError(f"{spec.model}: has no tokenizer of its own", "unsupported")
        return found

    async def _wake(self, request: DoorRequest, what: str, spec: ModelSpec) -> None:
        backend, items = request.door.backend, items_of(["a"])
        if what == SCORES:
            await backend.score(spec.model, items[0], items, request.seconds, {})
        elif what == CLASSES:
            await backend.extract(spec.model, items, [], None, request.seconds, {})
        else:
            await backend.encode(spec.model, items, request.seconds, {})

    async def info(self, request: DoorRequest) -> Answer:
        what, spec = await self._capable.default()
        return request.answer(described(what, spec, request.door.settings.door_max_items))

    async def _embedded(self, request: DoorRequest, output: str, what: str) -> list[Any]:
        wanted = Embed.of(request)
        results = await self._encoded(request, wanted, wanted.inputs, output, what)
        wanted.check_lengths(results, "inputs")
        return results

    async def _encoded(
        self, request: DoorRequest, wanted: Body, texts: Sequence[str], output: str, what: str
    ) -> list[Any]:
        parameters, spec = wanted.options(), await self._capable.spec(what)
        parameters = cut_by(spec, parameters, DIRECTION)
        return await encoded(request, wanted, spec.model, items_of(texts), output, parameters)


def _told(request: DoorRequest, answer: Any, results: Sequence[Any]) -> Answer:
    num_tokens = sum(result["token_count"] for result in results)
    return answered(request, answer, timing_of(results), {TOKENS_HEADER: str(num_tokens)})


def sparse_answer(results: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the response body of /embed_sparse for encode's results."""
    rows = [(result["sparse"]["indices"].tolist(), result["sparse"]["values"]) for result in results]
    return [[{"index": i, "value": value} for i, value in zip(*row, strict=True)] for row in rows]


def rerank_answer(asked: Rerank, scores: Sequence[float]) -> list[dict[str, Any]]:
    """Return the response body of /rerank, the most relevant first; `scores` are in the order of the texts."""
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])[: asked.top_n]
    results = [{"index": index, "score": scores[index]} for index in ranked]
    return [each | {"text": asked.texts[int(each["index"])]} for each in results] if asked.return_text else results


def described(what: str, spec: ModelSpec, max_items: int) -> dict[str, Any]:
    """Return the response body of /info. `pooling` is "unknown" unless the model file sets it."""
    runtime, label = spec.runtime, "LABEL_0"
    pooling = "splade" if what == SPARSE_VECTORS else str(spec.options.get("pooling") or "unknown")
    kinds: dict[str, Any] = {
        SCORES: {"reranker": {"id2label": {"0": label}, "label2id": {label: 0}}},
        CLASSES: {"classifier": {"id2label": {}, "label2id": {}}},  # the door does not read a model's files
    }
    return {
        "model_id": spec.model,
        "model_sha": None,
        "model_dtype": runtime.precision or ("float32" if runtime.device == "cpu" else "float16"),
        "model_type": kinds.get(what, {"embedding": {"pooling": pooling}}),
        "max_concurrent_requests": runtime.max_concurrent_requests,
        "max_input_length": spec.max_sequence_length,
        "max_batch_tokens": spec.max_batch_cost,
        "max_batch_requests": None,
        "max_client_batch_size": max_items,
        "auto_truncate": True,
        "tokenization_workers": 1,
        "version": version("sie-triton"),
        "sha": None,
        "docker_label": None,
    }


def error(failure: Failure) -> dict[str, str]:
    return {"error": failure.message, "error_type": TYPES.get(failure.row.tei, VALIDATION)}


TEI = Dialect(lambda row: row.tei, error)
