"""`org/name:profile` is a name at the door and in both clients, whether the profile is a parameter or a model."""

import asyncio
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest

from sie_triton import AsyncSIEClient, InputError, SIEClient
from sie_triton.client.failures import NotServed
from sie_triton.engines.torch.cpu_kernels import has_int8
from tests.server.test_known_models import ENCODER, Ports, default_server

TEXT = "Ada Lovelace lived in London."
MODEL = "test/m"


@pytest.fixture(scope="module")
def server(tmp_path_factory, tiny_directory) -> Iterator[Ports]:
    root = tmp_path_factory.mktemp("profiles")
    (root / "models").mkdir()
    (root / "models" / "m.yaml").write_text(
        textwrap.dedent(f"""\
        sie_id: {MODEL}
        weights_path: {tiny_directory}
        tasks: {{encode: {{dense: {{dim: 64}}}}}}
        max_sequence_length: 512
        profiles:
          default:
            adapter_path: sentence_transformer
          shouted:
            extends: default
            adapter_options: {{runtime: {{doc_template: "LOUD {{text}}"}}}}
          half:
            extends: default
            compute_precision: bfloat16
          eighth:
            extends: default
            compute_precision: int8
    """)
    )
    with default_server(root / "data", f"--models-dir={root / 'models'}", "--no-serve-known") as running:
        yield running


@pytest.fixture(scope="module")
def client(server) -> Iterator[SIEClient]:
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def vectors(client):
    """The vector of each profile, under the names that Triton's own clients use."""
    found = {
        "default": client.encode(MODEL, TEXT),
        "shouted": client.encode(MODEL, TEXT, profile="shouted"),
        "half": client.encode(f"{MODEL}.half", TEXT),
        "eighth": client.encode(f"{MODEL}.eighth", TEXT),
    }
    vectors = {name: result["dense"] for name, result in found.items()}
    assert abs(vectors["default"] - vectors["shouted"]).max() > 0.01
    assert abs(vectors["default"] - vectors["half"]).max() > 1e-5
    return vectors


def test_a_profile_may_be_computed_in_8_bits(vectors):
    assert vectors["eighth"] @ vectors["default"] > 0.98
    if has_int8():
        assert min(abs(vectors["eighth"] - vectors[name]).max() for name in ("default", "half")) > 1e-5


@pytest.mark.parametrize("profile", ["default", "shouted", "half"])
def test_a_profile_is_part_of_the_name(server, client, vectors, profile):
    name = f"{MODEL}:{profile}"
    np.testing.assert_allclose(client.encode(name, TEXT)["dense"], vectors[profile], atol=1e-6)

    async def encoded():
        async with AsyncSIEClient(f"http://127.0.0.1:{server.http}") as client:
            return await client.encode(name, TEXT)

    np.testing.assert_allclose(asyncio.run(encoded())["dense"], vectors[profile], atol=1e-6)
    answer = server.post(f"encode/{name}", items=[{"text": TEXT}]).json()
    assert answer["model"] == name
    np.testing.assert_allclose(answer["items"][0]["dense"]["values"], vectors[profile], atol=1e-6)
    embedded = server.post("embeddings", model=name, input=TEXT).json()
    np.testing.assert_allclose(embedded["data"][0]["embedding"], vectors[profile], atol=1e-6)


def test_each_profile_is_listed_as_a_model(server, vectors):
    names = [MODEL, *(f"{MODEL}:{name}" for name in ("shouted", "half", "eighth")), f"{MODEL}.eighth", f"{MODEL}.half"]
    assert list(server.states().items()) == [(name, "loaded") for name in names]
    for name in names:
        assert server.get(f"models/{name}").json()["name"] == name
    assert server.get(f"models/{MODEL}:default").json()["name"] == MODEL


def test_without_known_models_only_the_served_ones_answer(server, client):
    assert {name.partition(":")[0].partition(".")[0] for name in server.states()} == {MODEL}
    with pytest.raises(NotServed, match=f"{ENCODER} is not served; served models: {MODEL}"):
        client.encode(ENCODER, TEXT)
    assert server.post(f"encode/{ENCODER}", items=[{"text": TEXT}]).status_code == 404


def test_an_unknown_profile_is_answered_with_those_of_the_model(server, client):
    reason = f"model: {MODEL} has no profile quiet; its profiles are default, shouted, half, eighth"
    with pytest.raises(NotServed) as refused:
        client.encode(f"{MODEL}:quiet", TEXT)
    assert str(refused.value) == reason
    for answer in (server.post(f"encode/{MODEL}:quiet", items=[{"text": TEXT}]), server.get(f"models/{MODEL}:quiet")):
        assert (answer.status_code, answer.json()["detail"]["message"]) == (404, reason)


def test_two_different_profiles_are_refused(server, client):
    with pytest.raises(InputError, match="profile: 'half' differs from that of test/m:shouted"):
        client.encode(f"{MODEL}:shouted", TEXT, profile="half")
    params = {"options": {"profile": "half"}}
    answer = server.post(f"encode/{MODEL}:shouted", items=[{"text": TEXT}], params=params)
    assert (answer.status_code, "differs" in answer.text) == (400, True)
    same = server.post(f"encode/{MODEL}:shouted", items=[{"text": TEXT}], params={"options": {"profile": "shouted"}})
    assert same.status_code == 200


@pytest.mark.parametrize("name", ["test/never:shouted", "test/m-preprocess:shouted", "test/m-inference:x"])
def test_a_profile_of_no_model_is_not_served(server, client, name):
    assert server.post(f"encode/{name}", items=[{"text": TEXT}]).status_code == 404
    with pytest.raises(NotServed):
        client.encode(name, TEXT)
