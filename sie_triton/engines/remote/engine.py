"""A model that a remote server computes. Token ids are sent, so that exactly the counted tokens are computed."""

import logging
import os
from collections.abc import Sequence

import numpy as np
import orjson

from sie_triton.contract.arrays import Floats, Ints
from sie_triton.contract.spec import Endpoint, ModelSpec
from sie_triton.engines.base import Encoder, Engine
from sie_triton.engines.measurements import Measurements
from sie_triton.engines.remote.connection import EndpointConnection, EndpointRequest
from sie_triton.engines.remote.responses import Answer, Doubles, embeddings, most_bytes, num_read, parsed, probabilities
from sie_triton.errors import InputError, LoadError

log = logging.getLogger(__name__)


EMBEDDINGS = "/v1/embeddings"

# Paths for the probabilities of the next token: vLLM's and SGLang's, in this order. vLLM's /v1/score differs.
SCORES = ("/generative_scoring", "/v1/score")


class RemoteEngine(Engine):
    """Engine that uses no device memory. LoadError if the endpoint's API key is not in the environment."""

    name = "remote"

    def __init__(self, spec: ModelSpec, device: str, measurements: Measurements) -> None:
        super().__init__(spec, device, measurements)
        if spec.endpoint is None:
            raise LoadError("endpoint: is missing in the model file; the engine remote needs one", "unsupported")
        self.endpoint = spec.endpoint
        self._connection = EndpointConnection(self.endpoint.url, headers(self.endpoint), spec.runtime.forward_timeout_s)

    def used_bytes(self) -> int:
        return 0

    def close(self) -> None:
        """Close the connections. Optional for a worker that exits."""
        self._connection.close()

    def encoder(self) -> "RemoteEncoder":
        return RemoteEncoder(self._connection, self.endpoint)


class RemoteEncoder(Encoder):
    """Encoder whose methods each send one request. Thread-safe.

    Raises InputError if the endpoint rejects the input, BusyError if it is unreachable or overloaded, LoadError if it
    denies access or lacks the model, and ModelError for any other failure.
    """

    def __init__(self, connection: EndpointConnection, endpoint: Endpoint) -> None:
        self._connection, self._endpoint = connection, endpoint
        self._scores: str | None = None
        self._has_warned = False

    def vectors(self, items: Sequence[Ints], dim: int, deadline_ns: int | None) -> Floats:
        """Return float32 [items, dim] for token ids, as the endpoint pools and normalises them.

        `dim`, from the model file, only limits the size of the response; the result's dimension is not checked.
        """
        asked = {"input": items, "encoding_format": "float"}
        answer = self._ask(EMBEDDINGS, asked, items, most_bytes(len(items) * dim), deadline_ns)
        return embeddings(self._endpoint.url + EMBEDDINGS, answer, len(items))

    def choice_probabilities(self, items: Sequence[Ints], tokens: tuple[int, int], deadline_ns: int | None) -> Doubles:
        """Return float64 [items, 2]: the probability of each of two tokens, given that one of them is next."""
        if self._scores is None:
            self._scores = self._find_path(items, tokens)
        return self._choice_probabilities(self._scores, items, tokens, deadline_ns)

    def _find_path(self, items: Sequence[Ints], tokens: tuple[int, int]) -> str:
        """Return the path among SCORES that the endpoint has."""
        first, second = SCORES
        try:
            self._choice_probabilities(first, items, tokens, is_first_try=True)
        except LoadError as exc:
            if exc.reason != "not found":
                raise
            return second
        return first

    def _choice_probabilities(
        self,
        path: str,
        items: Sequence[Ints],
        tokens: tuple[int, int],
        deadline_ns: int | None = None,
        is_first_try: bool = False,
    ) -> Doubles:
        common = num_common(items)
        asked = {
            "query": items[0][:common],
            "items": [item[common:] for item in items],
            "label_token_ids": tokens,
            "apply_softmax": True,
            "item_first": False,
        }
        answer = self._ask(path, asked, items, most_bytes(2 * len(items)), deadline_ns, is_first_try)
        return probabilities(self._endpoint.url + path, answer, len(items))

    def _ask(
        self,
        path: str,
        asked: Answer,
        items: Sequence[Ints],
        limit: int,
        deadline_ns: int | None,
        is_first_try: bool = False,
    ) -> Answer:
        where, body = self._endpoint.url + path, {"model": self._endpoint.model, **asked}
        question = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        answer = parsed(where, self._connection.ask(EndpointRequest(path, question, limit, deadline_ns, is_first_try)))
        self._compare(where, sum(map(len, items)), num_read(answer))
        return answer

    def _compare(self, where: str, num_sent: int, num_read: int | None) -> None:
        """Raise InputError if the endpoint read fewer tokens than were sent; log once if it read more."""
        if num_read is None or num_read == num_sent:
            return
        if num_read < num_sent:
            remedy = "send shorter texts, or lower max_sequence_length in the model file to the endpoint's limit"
            raise InputError(f"{where}: read only {num_read} of {num_sent} tokens; {remedy}")
        if not self._has_warned:
            self._has_warned = True
            log.warning("%s: read %d tokens, but %d were sent; its results may differ", where, num_read, num_sent)


def num_common(items: Sequence[Ints]) -> int:
    """Return how many leading tokens all items share; at least one token of each item is not counted.

    >>> num_common([np.array([7, 8, 9]), np.array([7, 8, 4, 5])]), num_common([np.array([7, 8])]), num_common([])
    (2, 1, 0)
    """
    if not items:
        return 0
    most = min(map(len, items)) - 1
    differ = [np.flatnonzero(item[:most] != items[0][:most]) for item in items]
    return min([most, *(int(places[0]) for places in differ if len(places))])


def headers(endpoint: Endpoint) -> dict[str, str]:
    """Return the request headers, with the API key if the endpoint needs one; LoadError if the key is not set."""
    agent = {"User-Agent": "sie-triton", "Accept": "application/json"}
    if not endpoint.api_key_env:
        return agent
    key = os.environ.get(endpoint.api_key_env, "").strip()
    where = f"endpoint.api_key_env: the environment variable {endpoint.api_key_env}"
    if not key:
        raise LoadError(f"{where} is not set, or is empty; set it in the server's environment", "gated")
    if not (key.isascii() and key.isprintable()):
        raise LoadError(f"{where} does not contain a valid key; set it in the server's environment", "gated")
    if not endpoint.is_private:
        log.warning("%s: the API key is sent unencrypted; use https on an untrusted network", endpoint.url)
    return {**agent, "Authorization": f"Bearer {key}"}
