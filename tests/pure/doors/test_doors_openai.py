"""OpenAI's bodies → requests; results → its responses."""

import base64

import numpy as np
import pytest

from sie_triton.doors.failures import Failure, invalid
from sie_triton.doors.openai import Embeddings, answer, error
from sie_triton.errors import InputError

WRONG = "invalid_request_error"
VECTORS = np.array([[0.1, -2.5], [3e-8, 1.0]], np.float32)
RESULTS = [{"dense": vector, "token_count": count} for vector, count in zip(VECTORS, (3, 4), strict=True)]


def asked(body):
    return Embeddings.read(body, max_items=100)


def test_a_request_is_read_with_its_options():
    plain = asked({"model": "org/name", "input": "one"})
    assert (plain.model, plain.input, plain.encoding_format, plain.options()) == ("org/name", ["one"], None, {})
    full = {"input": ["one", ""], "model": "org/name:fast", "encoding_format": "base64", "user": "u", "dimensions": 8}
    read = asked(full)
    assert (read.model, read.input, read.encoding_format) == ("org/name:fast", ["one", ""], "base64")
    assert read.options() == {"dimensions": 8}
    for task, is_query in (("retrieval.query", True), ("retrieval.passage", False)):
        assert asked({"model": "m", "input": "x", "task": task}).options() == {"is_query": is_query}


def test_null_fields_are_ignored_and_unknown_ones_passed_to_the_model():
    body = {"model": "m", "input": "x", "dimensions": None, "user": None, "is_query": True, "instruction": "find"}
    assert asked(body).options() == {"is_query": True, "instruction": "find"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "body: must be a JSON object; got a list"),
        ({"input": "x"}, "model: is missing"),
        ({"model": 3, "input": "x"}, "model: must be a string .*; got 3"),
        ({"model": "m"}, "input: is missing"),
        ({"model": "m", "input": []}, "input: is empty"),
        (
            {"model": "m", "input": {"text": "x"}},
            "input: must be a list .a string or a list of strings.*; got an object",
        ),
        ({"model": "m", "input": ["x", ["y"]]}, r"input\[1\]: must be a string; got a list"),
        ({"model": "m", "input": ["x", None]}, r"input\[1\]: must be a string; got null"),
        ({"model": "m", "input": [[]]}, r"input\[0\]: must be a string; got a list"),
        ({"model": "m", "input": 3}, "input: must be a list .*; got 3"),
        ({"model": "m", "input": "x", "encoding_format": "hex"}, "encoding_format: must be 'float' or 'base64'"),
        ({"model": "m", "input": "x", "encoding_format": ["float"]}, "encoding_format: must be 'float' or 'base64'"),
        ({"model": "m", "input": "x", "task": "separation"}, "task: must be 'retrieval.query' or 'retrieval.passage'"),
        ({"model": "m", "input": "x", "output_dtype": "int8"}, "output_dtype: cannot be set here"),
        ({"model": "m", "input": "x", "chunk_tokens": 64}, "chunk_tokens: cannot be set here"),
        ({"model": "m", "input": "x", "late_chunking": True}, "late_chunking: cannot be set here"),
    ],
)
def test_an_invalid_field_is_named(body, message):
    with pytest.raises(InputError, match=f"^{message}"):
        asked(body).options()


@pytest.mark.parametrize("ids", [[15339, 1917], [[15339, 1917], [42]], [0]])
def test_token_ids_are_refused_with_the_way_out(ids):
    with pytest.raises(InputError, match=r"^input: contains token ids.*check_embedding_ctx_length=False"):
        asked({"model": "m", "input": ids})


def test_floats_and_usage():
    found = answer("m", RESULTS, is_base64=False)
    assert [each["index"] for each in found["data"]] == [0, 1]
    np.testing.assert_array_equal([each["embedding"] for each in found["data"]], VECTORS)
    assert found["usage"] == {"prompt_tokens": 7, "total_tokens": 7}
    assert (found["object"], found["model"], found["data"][0]["object"]) == ("list", "m", "embedding")


def test_base64_is_little_endian_float32():
    found = answer("m", RESULTS, is_base64=True)
    decoded = [np.frombuffer(base64.b64decode(each["embedding"]), "<f4") for each in found["data"]]
    np.testing.assert_array_equal(decoded, VECTORS)


@pytest.mark.parametrize(
    ("failure", "kind", "param", "code"),
    [
        (invalid("input[3]", "must be a string"), WRONG, "input", "invalid_input"),
        (Failure("input", "parameter dimensions: 0 …", field="dimensions"), WRONG, "dimensions", "invalid_input"),
        (invalid("text[2]", "is not …"), WRONG, "input", "invalid_input"),
        (Failure("not_served", "model: x is not served", field="model"), WRONG, "model", "model_not_found"),
        (Failure("unauthorized", "the token …"), WRONG, None, "invalid_api_key"),
        (Failure("busy", "lanes: are full"), "rate_limit_error", None, "queue_full"),
        (Failure("model_loading", "timeout: …"), "server_error", None, "model_loading"),
        (Failure("model", "it broke"), "server_error", None, "inference_error"),
    ],
)
def test_failures_have_its_shape(failure, kind, param, code):
    assert error(failure) == {"error": {"message": failure.message, "type": kind, "param": param, "code": code}}
