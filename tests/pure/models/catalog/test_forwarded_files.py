"""Model files of models that generate text, which an endpoint computes."""

import pytest
import yaml

from sie_triton.contract.spec import Endpoint, Runtime
from sie_triton.errors import CatalogError
from sie_triton.models.catalog.load import read_sent

URL = "http://gpu-host:8000"


def read(**more):
    content = {"sie_id": "org/chat", "tasks": {"generate": {}}, "profiles": {"default": {"endpoint": f"{URL}/v1/"}}}
    return read_sent(yaml.safe_dump(content | more).encode())


def test_a_file_needs_a_name_and_an_endpoint():
    model = read()
    spec = model.resolve(Runtime())
    assert (spec.is_forwarded, spec.tasks, spec.endpoint) == (True, ("generate",), Endpoint(URL, "org/chat"))
    assert (model.warnings(), model.notes(), model.variants(), spec.dims) == ([], [], [], {})


def test_the_name_at_the_endpoint_is_that_of_the_hub_or_its_own():
    assert read(hf_id="Qwen/Qwen3-4B").resolve(Runtime()).endpoint.model == "Qwen/Qwen3-4B"
    profiles = {"only": {"endpoint": {"url": URL, "model": "there", "api_key_env": "KEY"}}}
    model = read(profiles=profiles)
    assert (model.resolve(Runtime()).endpoint, model.warnings()) == (Endpoint(URL, "there", "KEY"), [])


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"profiles": {"default": {}}}, "tasks.generate: this server computes no text"),
        ({"profiles": "x"}, "tasks.generate: this server computes no text"),
        (
            {"profiles": {"default": {}, "far": {"endpoint": URL}}},
            "profiles.default.endpoint: is missing",
        ),
        ({"tasks": {"generate": {}, "score": {}}}, "tasks: generate cannot be combined with score"),
        ({"weights_path": "/usr"}, "weights_path: cannot be used with tasks.generate"),
        ({"hf_id": "a/b", "loras": {"a": "org/b"}}, "loras: cannot be used with tasks.generate"),
    ],
)
def test_what_contradicts_forwarding_is_an_error(more, line):
    with pytest.raises(CatalogError) as caught:
        read(**more)
    assert str(caught.value).startswith(f"model file: {line}")
    assert "\n" not in str(caught.value)


def test_keys_that_the_endpoint_decides_are_named():
    profiles = {"default": {"endpoint": URL, "adapter_path": "sie_server.adapters.sglang:X"}, "other": {}}
    lines = read(profiles=profiles, max_sequence_length=100).warnings()
    assert [line.split(": ")[2] for line in lines] == [
        "max_sequence_length",
        "profiles.default.adapter_path",
        "profiles.other",
    ]
