"""Requests of SIEClient and its handling of responses, at tritonclient's own seam."""

from collections.abc import Callable

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from sie_triton import InputError, SIEClient
from sie_triton.client.calls import PIECE_BYTES, EncodeCall, ExtractCall
from sie_triton.contract.tensors import TIMING_FIELDS
from tests.pure.client.test_client_results import Response

MODEL = "org/model"


def answer(num_items: int) -> Response:
    """Vectors of one entry, the item's place; scores that rise. It took as many ms as it has items."""
    places = np.arange(num_items, dtype=np.float32)
    timing = np.full(len(TIMING_FIELDS), num_items, np.float32)
    return Response(dense=places[:, None], token_count=np.ones(num_items, int), scores=places, timing_ms=timing)


class FakeTriton:
    """tritonclient.grpc's client of a model that scores too; `infer(num_items)` may raise instead."""

    def __init__(self) -> None:
        self.asked: list[dict] = []
        self.infer_of: Callable[[int], Response] = answer
        self.served = ["org__model", "org__model-inference"]
        self.scoring = "org__model"
        self.takes = ["query", "text"]  # None: the metadata cannot be had
        self.num_metadata = 0

    def infer(self, model_name, inputs, **given):
        if any(each.name() == "query" for each in inputs) and model_name != self.scoring:
            raise InferenceServerException("unexpected inference input 'query'", status="StatusCode.INVALID_ARGUMENT")
        (num_items,) = next(each.shape() for each in inputs if each.name() == "text")
        self.asked.append({"items": num_items, **given})
        return self.infer_of(num_items)

    def get_model_metadata(self, *_, **__):
        self.num_metadata += 1
        if self.takes is None:
            raise InferenceServerException("away", status="StatusCode.UNAVAILABLE")
        return {"inputs": [{"name": name} for name in self.takes]}

    def is_model_ready(self, model_name, **__):
        return model_name == self.scoring

    def is_server_live(self, *_, **__):
        return True

    def get_inference_statistics(self, *_, **__):
        return {"model_stats": [{"name": name} for name in self.served]}

    def close(self):
        pass


@pytest.fixture
def triton(monkeypatch) -> FakeTriton:
    fake = FakeTriton()
    monkeypatch.setattr(tritonclient.grpc, "InferenceServerClient", lambda *_, **__: fake)
    return fake


@pytest.fixture
def client(triton):
    with SIEClient("nowhere:8001") as client:
        yield client


def failing(status: str, times: int = 10**9) -> Callable[[int], Response]:
    left = [times]

    def infer(num_items):
        left[0] -= 1
        if left[0] >= 0:
            raise InferenceServerException("no", status=f"StatusCode.{status}")
        return answer(num_items)

    return infer


# --- many items


@pytest.mark.parametrize(("num_items", "requests"), [(512, [512]), (513, [1, 512]), (1025, [1, 512, 512])])
def test_a_request_has_512_items_at_most(client, triton, num_items, requests):
    assert len(client.encode(MODEL, ["a"] * num_items)) == num_items
    assert sorted(each["items"] for each in triton.asked) == requests


def test_requests_are_split_by_bytes_too(client, triton):
    client.encode(MODEL, ["a" * 30_000] * 5)
    assert sorted(each["items"] for each in triton.asked) == [1, 2, 2]


def test_a_request_sends_only_files_of_its_own_items():
    items = [{"image": b"a", "text": "x" * PIECE_BYTES}, {"text": ""}]
    call = EncodeCall(tritonclient.grpc, MODEL, items, {})
    sent = [[each.name() for each in call.arguments(piece)["inputs"]] for piece in call.pieces]
    assert sent == [["text", "image"], ["text"]]


def test_the_query_counts_beside_each_item(client, triton):
    """The query goes through the model, or the tokenizer, with each of the items."""
    client.score(MODEL, "q" * 30_000, ["a"] * 5)
    assert sorted(each["items"] for each in triton.asked) == [1, 2, 2]


def test_scoring_follows_a_change_of_the_models_ensemble(client, triton):
    for triton.scoring in ("org__model", "org__model-score", "org__model"):
        for _ in range(2):
            assert len(client.score(MODEL, "q", ["a", "b"])["scores"]) == 2
    triton.infer_of = failing("INVALID_ARGUMENT")
    num_before = len(triton.asked)
    with pytest.raises(InputError, match=r"^no$"):
        client.score(MODEL, "q", ["a"])
    assert len(triton.asked) == num_before + 1


# --- time


def test_the_server_gets_the_timeout_and_the_transport_waits_longer(client, triton):
    client.encode(MODEL, "a", timeout=5)
    (asked,) = triton.asked
    assert 4_000_000 < asked["timeout"] <= 5_000_000  # microseconds
    assert asked["timeout"] / 1e6 < asked["client_timeout"] < 10


def test_a_busy_server_is_retried_by_default(client, triton):
    triton.infer_of = failing("UNAVAILABLE", times=2)
    assert client.encode(MODEL, "a")["dense"].tolist() == [0]
    assert len(triton.asked) == 3


@pytest.mark.parametrize("status", ["INVALID_ARGUMENT", "NOT_FOUND"])
def test_a_wrong_request_is_not_retried(client, triton, status):
    triton.infer_of = failing(status)
    with pytest.raises(InputError):
        client.encode(MODEL, "a", timeout=2)
    assert len(triton.asked) == 1


# --- what does not fit the model


def test_the_error_for_an_unserved_model_points_to_status(client, triton):
    """Triton knows no model files; the client names the command that lists those with errors."""

    def unknown(num_items):
        raise InferenceServerException("Request for unknown model: 'x' is not found", status="StatusCode.NOT_FOUND")

    triton.infer_of = unknown
    said = f"^model: org/modle is not served; served models: {MODEL}; sie-triton models add, .*status lists"
    with pytest.raises(InputError, match=said):
        client.encode("org/modle", "a")


def test_the_metadata_of_a_model_is_read_only_after_an_error(client, triton):
    client.encode(MODEL, ["a"] * 513)
    assert triton.num_metadata == 0
    triton.infer_of = failing("INVALID_ARGUMENT", times=1)
    with pytest.raises(InputError, match=f"^model: {MODEL} does not encode; it takes query, text; call score$"):
        client.encode(MODEL, "a")
    assert triton.num_metadata == 1


@pytest.mark.parametrize("takes", [None, ["text"]])
def test_an_error_is_unchanged_if_metadata_does_not_explain_it(client, triton, takes):
    triton.takes = takes
    triton.infer_of = failing("INVALID_ARGUMENT")
    with pytest.raises(InputError, match=r"^no$"):
        client.encode(MODEL, "a")
    assert triton.num_metadata == 1


# --- adapters


@pytest.mark.parametrize(("lora", "sent"), [("banking", {"lora": "banking"}), ("", {"lora": ""}), (None, {})])
def test_every_verb_sends_the_name_of_an_adapter(client, triton, lora, sent):
    """An empty name is sent: it turns the profile's adapter off."""
    client.encode(MODEL, "a", lora=lora)
    client.score(MODEL, "q", ["a"], lora=lora)
    call = ExtractCall(tritonclient.grpc, MODEL, "a", (), None, {"lora": lora})
    assert [each["parameters"] for each in (*triton.asked, call.arguments(call.pieces[0]))] == [sent] * 3
