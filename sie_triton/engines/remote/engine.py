"""A model that a server of somebody's computes. What goes there are token ids: what was counted is what is computed."""

import logging
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import orjson

from sie_triton.engines.base import Encoder, Engine
from sie_triton.engines.remote.answers import (
    Answer,
    Doubles,
    Floats,
    embeddings,
    most_bytes,
    num_read,
    parsed,
    probabilities,
)
from sie_triton.engines.remote.connection import Connection, Question
from sie_triton.errors import InputError, LoadError
from sie_triton.measurements import Measurements
from sie_triton.spec import Endpoint, ModelSpec

log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int32]

EMBEDDINGS = "/v1/embeddings"

# Where the probabilities of the next token are to be had: vLLM's way, and SGLang's. vLLM's /v1/score is another thing.
SCORES = ("/generative_scoring", "/v1/score")


class RemoteEngine(Engine):
    """Takes no memory of the device, whatever the model; LoadError where a key is asked for and is not there."""

    name = "remote"

    def __init__(self, spec: ModelSpec, device: str, measurements: Measurements) -> None:
        super().__init__(spec, device, measurements)
        if spec.endpoint is None:
            raise LoadError("endpoint: is missing in the model file, and the engine remote needs one", "unsupported")
        self.endpoint = spec.endpoint
        self._connection = Connection(self.endpoint.url, headers(self.endpoint), spec.runtime.forward_timeout_s)

    def used_bytes(self) -> int:
        return 0

    def close(self) -> None:
        """Its connections; a worker that ends has them closed anyway."""
        self._connection.close()

    def encoder(self) -> "RemoteEncoder":
        return RemoteEncoder(self._connection, self.endpoint)


class RemoteEncoder(Encoder):
    """Each method is one request, which any thread may make.

    InputError where the endpoint refuses what it is sent, BusyError where it is away or has too much to do, LoadError
    where it is not for us, ModelError for whatever else is no answer.
    """

    def __init__(self, connection: Connection, endpoint: Endpoint) -> None:
        self._connection, self._endpoint = connection, endpoint
        self._scores: str | None = None
        self._has_told = False

    def vectors(self, items: Sequence[Ints], dim: int, deadline_ns: int | None) -> Floats:
        """float32 [items, dim] of token ids, as the endpoint pools and normalises them.

        `dim` is what the model file says, and bounds how long an answer may be; it is not compared.
        """
        asked = {"input": items, "encoding_format": "float"}
        answer = self._ask(EMBEDDINGS, asked, items, most_bytes(len(items) * dim), deadline_ns)
        return embeddings(self._endpoint.url + EMBEDDINGS, answer, len(items))

    def either(self, items: Sequence[Ints], tokens: tuple[int, int], deadline_ns: int | None) -> Doubles:
        """float64 [items, 2]: how likely each of two tokens comes next, if it is one of them."""
        if self._scores is None:
            self._scores = self._found(items, tokens)
        return self._either(self._scores, items, tokens, deadline_ns)

    def _found(self, items: Sequence[Ints], tokens: tuple[int, int]) -> str:
        """Which of SCORES the endpoint has."""
        first, second = SCORES
        try:
            self._either(first, items, tokens, is_first_try=True)
        except LoadError as exc:
            if exc.reason != "not found":
                raise
            return second
        return first

    def _either(
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
        answer = parsed(where, self._connection.ask(Question(path, question, limit, deadline_ns, is_first_try)))
        self._compare(where, sum(map(len, items)), num_read(answer))
        return answer

    def _compare(self, where: str, num_sent: int, num_read: int | None) -> None:
        """InputError where the endpoint has cut what it was sent; the log says it once where it adds to it."""
        if num_read is None or num_read == num_sent:
            return
        if num_read < num_sent:
            remedy = "send less, or let the model file say a max_sequence_length that is not longer than the endpoint's"
            raise InputError(f"{where}: has read {num_read} of {num_sent} tokens, and cut the rest; {remedy}")
        if not self._has_told:
            self._has_told = True
            log.warning("%s: read %d tokens where %d were sent, and computes something else", where, num_read, num_sent)


def num_common(items: Sequence[Ints]) -> int:
    """Tokens that all items begin with; of each at least one is left.

    >>> num_common([np.array([7, 8, 9]), np.array([7, 8, 4, 5])]), num_common([np.array([7, 8])]), num_common([])
    (2, 1, 0)
    """
    if not items:
        return 0
    most = min(map(len, items)) - 1
    differ = [np.flatnonzero(item[:most] != items[0][:most]) for item in items]
    return min([most, *(int(places[0]) for places in differ if len(places))])


def headers(endpoint: Endpoint) -> dict[str, str]:
    """With the key, where there is one; LoadError where the environment has none."""
    agent = {"User-Agent": "sie-triton", "Accept": "application/json"}
    if not endpoint.api_key_env:
        return agent
    key = os.environ.get(endpoint.api_key_env, "").strip()
    where = f"endpoint.api_key_env: the environment variable {endpoint.api_key_env}"
    if not key:
        raise LoadError(f"{where} is not set, or is empty; set it where the server is started", "gated")
    if not (key.isascii() and key.isprintable()):
        raise LoadError(f"{where} holds what is no key; set it where the server is started", "gated")
    if not endpoint.is_private:
        log.warning("%s: the key goes there in the clear; use https where others are on the way", endpoint.url)
    return {**agent, "Authorization": f"Bearer {key}"}
