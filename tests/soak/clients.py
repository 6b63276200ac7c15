"""Clients of every kind: each asks for what it knows the answer to, without a pause, and records what it got."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import msgpack
import numpy as np
import openai
import tritonclient.grpc as triton

from sie_triton.contract.names import triton_name
from sie_triton.doors.body_codec import read_msgpack
from tests.soak.history import FAILED, REFUSED, RIGHT, WRONG, Entry
from tests.support.pictures import pictures
from tests.support.sounds import sounds

# Timeout of a request, in seconds: loads and restarts included. The second one is that of many long texts.
TIMEOUT_S, MANY_TIMEOUT_S = 60.0, 600.0

TEXTS = [f"text number {i} " + "word " * i for i in range(20)]
QUERY = "what climbs up walls?"
WORDS = (
    *("wall", "vine", "brick", "garden", "climbs", "grows", "under"),
    *("light", "water", "stone", "roof", "door", "small"),
)
LABELS = ["person", "place", "plant"]
ENTITIES = "Ada Lovelace planted vines in Berlin."

IMAGES = pictures([(97, 61), (40, 90)])
SOUND = sounds()[0]

# Image file that a cluster's queue does not take: bytes follow the image. It goes through the payload store.
LARGE_IMAGE = IMAGES[0] + bytes(9 * 1024**2)

# Number of texts, of 5 to 400 words, that requests of many texts draw from, and the most of a request.
NUM_LONG, MAX_MANY = 64, 256

# Name of its client.
LARGE = "large images"

# Name of the client of a model whose weights are spoiled.
SPOILED = "spoiled weights"

# Name of the client of a model whose weights come from a hub.
OF_HUB = "model of the hub"

# Pause after a failure, in seconds.
PAUSE_S = 0.1


class Refused(Exception):
    """The service has refused a request and said when to retry."""


@dataclass(frozen=True)
class Models:
    """Names of the models of each kind; `encoders` are many, the first of them asked for most."""

    encoders: Sequence[str]
    reranker: str
    extractor: str
    images: str
    sounds: str
    spoiled: str
    of_hub: str
    minilm: str


# Asks once, and returns what can be compared.
Ask = Callable[[str, str], np.ndarray]


class Asking(ABC):
    """A kind of client. Its pauses are `pauses` times as long as those of others."""

    name: str
    models: Sequence[str]
    pauses = 1.0

    @abstractmethod
    def question(
        self, rng: np.random.Generator, texts: Sequence[str]
    ) -> tuple[str, Callable[[], np.ndarray], np.ndarray]:
        """Return a model, a request to it, and the right answer."""

    def run(self, seed: int, stopped: threading.Event, pause_s: float, texts: Sequence[str]) -> list[Entry]:
        """Ask until `stopped`, with pauses of `pause_s` on average."""
        rng, entries = np.random.default_rng(seed), []
        while not stopped.is_set():
            model, ask, expected = self.question(rng, texts)
            began, error = time.monotonic(), ""
            try:
                outcome = RIGHT if same(ask(), expected) else WRONG
            except Refused as exc:
                outcome, error = REFUSED, str(exc)
            except Exception as exc:
                outcome, error = FAILED, f"{type(exc).__name__}: {exc}"
            entries.append(Entry(self.name, model, began, time.monotonic(), outcome, error))
            stopped.wait(rng.exponential(self.pauses * pause_s) if outcome == RIGHT else PAUSE_S)
        return entries


class Client(Asking):
    """A client that asks for one text at a time. `ask` takes a model and a text; models are chosen by Zipf."""

    def __init__(self, name: str, models: Sequence[str], ask: Ask, pauses: float = 1.0) -> None:
        self.name, self.models, self._ask, self.pauses = name, models, ask, pauses
        self._expected: dict[tuple[str, str], np.ndarray] = {}
        weights = 1 / np.arange(1, len(models) + 1)
        self._weights = weights / weights.sum()

    def learn(self, model: str, texts: Sequence[str]) -> None:
        """Take the model's answers before the first fault as the right ones."""
        for text in texts:
            self._expected[model, text] = self._ask(model, text)

    def question(
        self, rng: np.random.Generator, texts: Sequence[str]
    ) -> tuple[str, Callable[[], np.ndarray], np.ndarray]:
        model, text = str(rng.choice(self.models, p=self._weights)), texts[rng.integers(len(texts))]
        return model, partial(self._ask, model, text), self._expected[model, text]


class Many(Asking):
    """A client that asks for 1 to MAX_MANY texts of 5 to 400 words at once. `ask` takes a model and the texts."""

    def __init__(self, name: str, model: str, ask: Callable[[str, Sequence[str]], np.ndarray]) -> None:
        self.name, self.models, self._ask = name, [model], ask
        rng = np.random.default_rng(5)
        self._texts = [" ".join(rng.choice(WORDS, rng.integers(5, 401))) for _ in range(NUM_LONG)]
        self._expected = np.empty(0)

    def learn(self, model: str, texts: Sequence[str]) -> None:
        """Take the model's answer to each text alone as the right one."""
        self._expected = np.concatenate([self._ask(model, [text]) for text in self._texts])

    def question(
        self, rng: np.random.Generator, texts: Sequence[str]
    ) -> tuple[str, Callable[[], np.ndarray], np.ndarray]:
        chosen, model = rng.integers(NUM_LONG, size=rng.integers(1, MAX_MANY + 1)), self.models[0]
        return model, partial(self._ask, model, [self._texts[i] for i in chosen]), self._expected[chosen]


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.shape == expected.shape and bool(np.allclose(found, expected, atol=2e-3))


def dense_of(found: Any) -> np.ndarray:
    return np.asarray(found["items"][0]["dense"]["values"])


def clients_of(http: str, grpc: str, models: Models) -> list[Client]:
    """Return a client of each kind for a service; each thread that asks has connections of its own."""
    own = threading.local()

    def posted(path: str, body: object, packed: bool = False) -> Any:
        if not hasattr(own, "http"):
            own.http = httpx.Client(base_url=http, timeout=TIMEOUT_S)
        kind = "application/msgpack" if packed else "application/json"
        headers = {"Content-Type": kind, "Accept": kind, "X-Request-Timeout": f"{TIMEOUT_S - 1:g}"}
        content = msgpack.packb(body) if packed else None
        answer = own.http.post(path, json=None if packed else body, content=content, headers=headers)
        if "Retry-After" in answer.headers:
            raise Refused(answer.text[:300])
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code} {answer.text[:300]}")
        return read_msgpack(answer.content) if packed else answer.json()

    def by_triton(model: str, text: str) -> np.ndarray:
        if not hasattr(own, "grpc"):
            own.grpc = triton.InferenceServerClient(grpc)
        tensor = triton.InferInput("text", [1], "BYTES")
        tensor.set_data_from_numpy(np.array([text.encode()], object))
        try:
            found = own.grpc.infer(triton_name(model), [tensor], request_id=text, client_timeout=TIMEOUT_S)
        except Exception as exc:
            if "retry=" in str(exc):
                raise Refused(str(exc)) from exc
            own.__dict__.pop("grpc").close()  # another gateway, or a new connection
            raise
        assert found.get_response().id == text
        return found.as_numpy("dense")[0]

    def by_json(model: str, text: str) -> np.ndarray:
        found = posted(f"/v1/encode/{model}", {"items": [{"id": text, "text": text}, {"text": text[::-1]}]})
        assert found["items"][0]["id"] == text
        return np.array([each["dense"]["values"] for each in found["items"]])

    def by_openai(model: str, text: str) -> np.ndarray:
        if not hasattr(own, "openai"):
            own.openai = openai.OpenAI(base_url=f"{http}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S)
        headers = {"X-Request-Timeout": f"{TIMEOUT_S - 1:g}"}
        try:
            found = own.openai.embeddings.create(model=model, input=[text], extra_headers=headers)
        except openai.APIStatusError as exc:
            if "Retry-After" in exc.response.headers:
                raise Refused(str(exc)) from exc
            raise
        return np.array(found.data[0].embedding)

    def by_cohere(model: str, text: str) -> np.ndarray:
        body = {"model": model, "query": QUERY, "documents": [text, "vines", ENTITIES]}
        found = sorted(posted("/v2/rerank", body)["results"], key=lambda each: each["index"])
        return np.array([each["relevance_score"] for each in found])

    def extracting(model: str, text: str) -> np.ndarray:
        body = {"items": [{"text": f"{ENTITIES} {text}"}], "params": {"labels": LABELS}}
        found = posted(f"/v1/extract/{model}", body)["items"][0]["entities"]
        return np.array([[each["start"], each["end"], LABELS.index(each["label"]), each["score"]] for each in found])

    def looking(model: str, text: str) -> np.ndarray:
        return vector_of(model, IMAGES[len(text) % len(IMAGES)])

    def looking_at_a_large_file(model: str, text: str) -> np.ndarray:
        return vector_of(model, LARGE_IMAGE)

    def vector_of(model: str, image: bytes) -> np.ndarray:
        return dense_of(posted(f"/v1/encode/{model}", {"items": [{"images": [{"data": image}]}]}, packed=True))

    def listening(model: str, text: str) -> np.ndarray:
        return dense_of(posted(f"/v1/encode/{model}", {"items": [{"audio": {"data": SOUND}}]}, packed=True))

    return [
        Client("tritonclient", models.encoders, by_triton),
        Client("SIE's HTTP", models.encoders, by_json),
        Client("openai", models.encoders, by_openai),
        Client("cohere", [models.reranker], by_cohere),
        Client("extract", [models.extractor], extracting),
        Client("images", [models.images], looking),
        Client("sounds", [models.sounds], listening),
        Client(LARGE, [models.images], looking_at_a_large_file, pauses=5.0),
        Client(SPOILED, [models.spoiled], by_json),
        Client(OF_HUB, [models.of_hub], by_json),
    ]


def many_clients_of(http: str, models: Models) -> list[Many]:
    """Return clients of many texts at once: for the leak gate, because their passes have every size."""

    def post(path: str, body: object) -> Any:
        headers = {"X-Request-Timeout": f"{MANY_TIMEOUT_S - 1:g}"}
        return httpx.post(f"{http}{path}", json=body, headers=headers, timeout=MANY_TIMEOUT_S).raise_for_status().json()

    def encoding(model: str, texts: Sequence[str]) -> np.ndarray:
        found = post(f"/v1/encode/{model}", {"items": [{"text": text} for text in texts]})
        return np.array([each["dense"]["values"] for each in found["items"]])

    def reranking(model: str, texts: Sequence[str]) -> np.ndarray:
        found = post("/v2/rerank", {"model": model, "query": QUERY, "documents": texts})["results"]
        return np.array([each["relevance_score"] for each in sorted(found, key=lambda each: each["index"])])

    return [
        Many("many texts", models.encoders[0], encoding),
        Many("many texts of MiniLM", models.minilm, encoding),
        Many("many documents", models.reranker, reranking),
    ]
