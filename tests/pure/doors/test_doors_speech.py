"""OpenAI's forms with a sound → requests; results → its formats."""

import asyncio
import json

import pytest

from sie_triton.doors.failures import Failure
from sie_triton.doors.forms import PIECE_BYTES, form_in
from sie_triton.errors import InputError
from tests.support.doors import door_of, knock, post

SOUND = b"RIFF\r\n--x\r\n\0\xff"
PATH = "/v1/audio/transcriptions"
SEGMENTS = [{"start": 0.0, "end": 1.5, "text": "Hello."}, {"start": 61.5, "end": 3725.25, "text": "Are you --> there?"}]
DATA = {"text": "Hello. Are you there?", "language": "en", "duration_ms": 3_726_000, "segments": SEGMENTS}


def asked(path=PATH, **fields):
    """Return the response to a form, and what the backend was asked."""
    door, backend = door_of()

    async def extract(*given):
        backend.asked.append(given)
        return [{"data": DATA}]

    backend.extract = extract
    given = {"model": "org/m", "file": ("speech.wav", SOUND), **fields}
    several = [
        (name, each) for name, value in given.items() for each in (value if isinstance(value, list) else [value])
    ]
    files = [(name, (None, each) if isinstance(each, str) else each) for name, each in several]
    answer = post(door, None, path, json=None, files=files)
    return answer, [(model, items, options) for model, items, _, _, _, options in backend.asked]


def test_a_form_becomes_a_request():
    usual, ((model, items, options),) = asked()
    assert (usual.status_code, usual.json()) == (200, {"text": DATA["text"]})
    assert (model, items) == ("org/m", [{"audio": SOUND}])
    assert options == {"task": "transcribe", "language": None, "instruction": None}
    more = {"language": "de", "prompt": "Grüße", "temperature": "0", "stream": "false"}
    _, ((*_, options),) = asked(**more)
    assert options == {"task": "transcribe", "language": "de", "instruction": "Grüße"}
    _, ((*_, options),) = asked("/v1/audio/translations", prompt="Hello")
    assert options == {"task": "translate", "language": None, "instruction": "Hello"}


def test_the_formats():
    told = {form: asked(response_format=form)[0] for form in ("json", "text", "verbose_json", "srt", "vtt")}
    assert told["text"].text == "Hello. Are you there?\n"
    verbose = told["verbose_json"].json()
    segments = [{"id": i, **each} for i, each in enumerate(SEGMENTS)]
    of_all = {"task": "transcribe", "language": "en", "duration": 3726.0, "text": DATA["text"]}
    assert verbose == {**of_all, "segments": segments}
    times = ["00:00:00,000 --> 00:00:01,500", "00:01:01,500 --> 01:02:05,250"]
    words = ["Hello.", "Are you -> there?"]
    cues = [f"{i}\n{time}\n{text}\n\n" for i, (time, text) in enumerate(zip(times, words, strict=True), 1)]
    assert told["srt"].text == "".join(cues)
    plain = [f"{time.replace(',', '.')}\n{text}\n\n" for time, text in zip(times, words, strict=True)]
    assert told["vtt"].text == "WEBVTT\n\n" + "".join(plain)
    assert {told[form].headers["content-type"] for form in ("text", "srt", "vtt")} == {"text/plain; charset=utf-8"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "0.2"),
        ("stream", "true"),
        ("response_format", "diarized_json"),
        ("timestamp_granularities[]", "word"),
        ("include[]", "logprobs"),
        ("chunking_strategy", "auto"),
        ("language", ["de", "fr"]),
        ("model", "m" * 600),
    ],
)
def test_what_is_not_supported_is_refused_by_name(field, value):
    answer, requests = asked(**{field: value})
    assert (answer.status_code, requests) == (400, [])
    assert answer.json()["error"]["param"] == field.removesuffix("[]")


@pytest.mark.parametrize(("place", "field"), [("parameter instruction", "prompt"), ("audio[0]", "file")])
def test_errors_of_the_model_name_fields_of_the_form(place, field):
    door, backend = door_of()
    backend.failure = InputError.at(place, "is wrong")
    answer = post(door, None, PATH, json=None, files={"model": (None, "org/m"), "file": ("a", SOUND)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)


def test_a_translation_has_no_language():
    answer, requests = asked("/v1/audio/translations", language="de")
    assert (answer.status_code, answer.json()["error"]["param"], requests) == (400, "language", [])


def test_only_these_routes_are_documented_with_forms():
    door, _ = door_of()

    async def documented(client):
        return await client.get("/openapi.json")

    door.served.specs = lambda: asyncio.sleep(0, [])
    paths = knock(door, documented).json()["paths"]
    read = {
        path: {*each["post"]["requestBody"]["content"]}
        for path, each in paths.items()
        if "post" in each and "requestBody" in each["post"]
    }
    assert {path for path, kinds in read.items() if "multipart/form-data" in kinds} >= {PATH}
    assert "multipart/form-data" not in read["/v1/encode/{model}"]


def test_other_bodies_are_refused():
    door, _ = door_of()
    assert post(door, {"model": "org/m"}, PATH).status_code == 415
    assert post(door, None, PATH, json=None, data={"model": "org/m"}).status_code == 415


def form(*parts, end=b"--\r\n"):
    return b"".join(b"--x\r\n" + part + b"\r\n" for part in parts) + b"--x" + end


def part(name, content=b"", more=b""):
    return b'Content-Disposition: form-data; name="' + name + b'"' + more + b"\r\n\r\n" + content


def read(body):
    return asyncio.run(form_in(body, "multipart/form-data; boundary=x; charset=latin-1"))


@pytest.mark.parametrize("size", [5, 3 * PIECE_BYTES])
def test_a_form_is_read(size):
    content = b"\r\n--y\0" + b"a" * size
    file = part(b"f", content, b'; filename="a b.wav"\r\nContent-Type: audio/wav')
    found = read(form(part(b"a", "ü".encode()), file, part(b"l[]", b"1"), part(b"l[]", b"2"), part(b"empty")))
    assert found == {"a": "ü", "f": content, "l[]": ["1", "2"], "empty": ""}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        json.dumps({"model": "m"}).encode(),
        form(part(b"a"), part(b"b"))[:-5],
        form(part(b"a"), part(b"b"), end=b""),
        form(b"Content-Type: text/plain\r\n\r\n"),
        form(part(b"a", b"\xff")),
        form(part(b"a"), part(b"a")),
        form(part(b"a[]"), part(b"a[]", more=b'; filename="x"')),
        form(part(b"a[]", more=b'; filename="x"'), part(b"a[]")),
        form(part(b"a", b"b" * (1024**2 + 1))),
        form(part(b"a", more=b"; x=" + b"y" * 2**16)),
        form(*[part(b"%d" % i) for i in range(65)]),
    ],
)
def test_a_broken_form_is_refused(body):
    with pytest.raises(Failure) as failed:
        read(body)
    assert failed.value.status == 400
