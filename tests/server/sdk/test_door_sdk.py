"""SIE's own SDK by a change of its base URL: sync at one server, async at a cluster in front of it.

Every method but those that generate text and those of SIE's managed cloud. Failures: test_door_sdk_failures.py.
"""

from collections.abc import Iterator

import numpy as np
import pytest

from sie_triton import SIEClient
from tests.conftest import BGE_M3, CLIP, COLBERT, CROSS_ENCODER, GLINER, MINILM, MUVERA, OWL, TINY
from tests.support.in_cluster import cluster_before
from tests.support.pictures import pictures
from tests.support.sdk import Sdk, SdkError

MODELS = (BGE_M3, CLIP, COLBERT, CROSS_ENCODER, GLINER, MINILM, OWL, TINY)
TYPES = ["dense", "sparse", "multivector"]
PROFILE = "l4-spot"
KINDS = {"server": "sync", "cluster": "async"}


@pytest.fixture(scope="module", params=["server", "cluster"])
def place(request, server, door, tmp_path_factory) -> Iterator[tuple[str, str]]:
    """Name and URL of what the SDK calls."""
    settings = server.settings.model_copy(update={"worker_id": "w0", "machine_profile": PROFILE})
    if request.param == "server":
        yield request.param, door
        return
    with cluster_before(settings, MODELS, tmp_path_factory.mktemp("cluster")) as (url, _):
        yield request.param, url


@pytest.fixture(scope="module")
def sdk(place, interpreter) -> Iterator[Sdk]:
    name, url = place
    with Sdk(interpreter, KINDS[name], url) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def direct(server) -> Iterator[SIEClient]:
    with SIEClient(server.grpc) as client:
        yield client


def same(found, expected):
    return found.dtype == expected.dtype and np.allclose(found, expected, atol=1 if found.dtype == np.int8 else 1e-5)


def test_vectors_are_those_of_triton(sdk, direct):
    items = [{"text": "how do vines climb?", "id": "a"}, {"text": "b"}]
    found = sdk.encode(BGE_M3, items, output_types=TYPES, options={"is_query": True})
    expected = direct.encode(BGE_M3, items, output_types=TYPES, is_query=True)
    assert [each.get("id") for each in found] == ["a", None]
    for one, other in zip(found, expected, strict=True):
        assert all(same(one[name], other[name]) for name in ("dense", "multivector"))
        assert np.array_equal(one["sparse"]["indices"], other["sparse"]["indices"])
        assert same(one["sparse"]["values"], other["sparse"]["values"])
    assert [name for name in TYPES if name in sdk.encode(BGE_M3, {"text": "b"})] == ["dense"]
    one = sdk.encode(BGE_M3, {"text": "b"}, output_types=["dense"], output_dtype="int8")
    assert same(one["dense"], direct.encode(BGE_M3, "b", output_types=["dense"], output_dtype="int8")["dense"])
    assert (one["request"]["usage"], bool(one["request"]["id"])) == ({"input_tokens": 3}, True)
    for types in ({}, {"output_types": ["dense"]}):
        assert len(sdk.encode(COLBERT, {"text": "b"}, **types)["dense"]) == MUVERA["final_projection_dim"]
    picture = pictures()[0]
    seen = sdk.encode(CLIP, {"images": [{"data": picture, "format": "png"}]})
    assert same(seen["dense"], direct.encode(CLIP, {"image": picture})["dense"])


def test_scores_and_findings_are_those_of_triton(sdk, direct):
    found = sdk.score(CROSS_ENCODER, {"text": "vines"}, [{"text": "vines climb"}, {"text": "no"}])["scores"]
    expected = direct.score(CROSS_ENCODER, "vines", ["vines climb", "no"])["scores"]
    assert [each["item_id"] for each in found] == [each["item_id"] for each in expected]
    assert [each["score"] for each in found] == pytest.approx([each["score"] for each in expected], abs=1e-5)
    given = {"labels": ["person", "city"], "options": {"threshold": 0.1}}
    entities = sdk.extract(GLINER, {"text": "Ada lived in London."}, **given)["entities"]
    expected = direct.extract(GLINER, "Ada lived in London.", ["person", "city"], threshold=0.1)["entities"]
    assert [each["text"] for each in entities] == [each["text"] for each in expected]


def test_an_image_that_cannot_be_read_spoils_only_its_own_result(sdk):
    whole = pictures()[0]
    items = [{"images": [{"data": data}], "id": f"i{i}"} for i, data in enumerate((whole, whole[:60], whole))]
    found = sdk.extract(OWL, items, labels=["a cat"])
    assert [each["id"] for each in found] == ["i0", "i1", "i2"]
    assert [each.get("error", {}).get("code") for each in found] == [None, "INVALID_INPUT", None]
    assert found[1]["error"]["message"].startswith("image[1]: ")
    assert found[0]["objects"] == found[2]["objects"]


def test_models_and_status(sdk, place, direct):
    names = [each["name"] for each in sdk.list_models() if ":" not in each["name"]]
    assert {*MODELS} <= {*names} <= {*direct.list_models()}
    assert sdk.get_model(BGE_M3)["dims"] == {"dense": 64, "sparse": 30522, "multivector": 32}
    told = sdk.watch()
    assert told["ready"] if place[0] == "server" else told["cluster"]["worker_count"] == 1
    assert (sdk.base_url(), sdk.last_retry_count()) == (place[1], 0)
    assert [line for line in sdk.heard() if "version" in line] == []


def test_capacity_and_pools(sdk, place):
    if place[0] == "server":
        refused(sdk.get_capacity, code="not_gateway")
        assert (sdk.get_pool("eval"), sdk.delete_pool("eval")) == (None, False)
        refused(sdk.create_pool, "eval", {PROFILE: 1}, kind="PoolError")
        return
    assert [each["name"] for each in sdk.get_capacity(gpu=PROFILE)["workers"]] == ["w0"]
    assert sdk.get_capacity(gpu="h100")["worker_count"] == 0
    assert sdk.wait_for_capacity(PROFILE)["worker_count"] == 1
    assert sdk.wait_for_capacity(PROFILE, model=TINY)["worker_count"] == 1
    assert sdk.get_pool("eval") is None
    sdk.create_pool("eval", {PROFILE: 1})
    assert sdk.get_pool("eval")["spec"]["gpus"] == {PROFILE: 1}
    assert (sdk.delete_pool("eval"), sdk.get_pool("eval")) == (True, None)
    refused(sdk.create_pool, "eval", kind="PoolError")


def refused(call, *arguments, kind="RequestError", code=None, **options):
    with pytest.raises(SdkError) as caught:
        call(*arguments, **options)
    assert (caught.value.kind, caught.value.code) == (kind, code)
    return caught.value
