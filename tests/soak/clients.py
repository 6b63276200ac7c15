"""Clients of every kind: each asks for what it knows the answer to, without a pause, and records what it got."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgpack
import numpy as np
import openai
import tritonclient.grpc as triton

from sie_triton.doors.wire import read_msgpack
from sie_triton.names import triton_name
from tests.soak.history import FAILED, REFUSED, RIGHT, WRONG, Entry
from tests.support.pictures import pictures
from tests.support.sounds import sounds

# Timeout of a request, in seconds: loads and restarts included.
TIMEOUT_S = 60.0

TEXTS = [f"text number {i} " + "word " * i for i in range(20)]
QUERY = "what climbs up walls?"
LABELS = ["person", "place", "plant"]
ENTITIES = "Ada Lovelace planted vines in Berlin."

IMAGES = pictures([(97, 61), (40, 90)])
SOUND = sounds()[0]

# Image file that a cluster's queue does not take: bytes follow the image. It goes through the payload store.
LARGE_IMAGE = IMAGES[0] + bytes(9 * 1024**2)

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


# Asks once, and returns what can be compared.
Ask = Callable[[str, str], np.ndarray]


class Client:
    """A kind of client. `ask` takes a model and a text. Its pauses are `pauses` times as long as those of others."""

    def __init__(self, name: str, models: Sequence[str], ask: Ask, pauses: float = 1.0) -> None:
        self.name, self.models, self._ask, self._pauses = name, models, ask, pauses
        self._expected: dict[tuple[str, str], np.ndarray] = {}

    def learn(self, model: str, texts: Sequence[str]) -> None:
        """Take the model's answers before the first fault as the right ones."""
        for text in texts:
            self._expected[model, text] = self._ask(model, text)

    def run(self, seed: int, stopped: threading.Event, pause_s: float, texts: Sequence[str]) -> list[Entry]:
        """Ask until `stopped`, with pauses of `pause_s` on average; models by Zipf."""
        rng, entries = np.random.default_rng(seed), []
        weights = 1 / np.arange(1, len(self.models) + 1)
        weights /= weights.sum()
        while not stopped.is_set():
            model, text = str(rng.choice(self.models, p=weights)), texts[rng.integers(len(texts))]
            began, error = time.monotonic(), ""
            try:
                found = self._ask(model, text)
                outcome = RIGHT if same(found, self._expected[model, text]) else WRONG
            except Refused as exc:
                outcome, error = REFUSED, str(exc)
            except Exception as exc:
                outcome, error = FAILED, f"{type(exc).__name__}: {exc}"
            entries.append(Entry(self.name, model, began, time.monotonic(), outcome, error))
            stopped.wait(rng.exponential(self._pauses * pause_s) if outcome == RIGHT else PAUSE_S)
        return entries


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
