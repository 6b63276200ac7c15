"""Routes of OpenAI's HTTP API for speech: POST /v1/audio/transcriptions and /v1/audio/translations."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from sie_triton.contract.spec import ModelSpec
from sie_triton.contract.tensors import AUDIO
from sie_triton.doors.body_codec import JSON, MULTIPART
from sie_triton.doors.endpoint import Answer, Door, DoorEndpoint, DoorRequest, post
from sie_triton.doors.failures import Failure
from sie_triton.doors.fields import Body, ModelName
from sie_triton.doors.model_choice import Explaining
from sie_triton.doors.openai import FAILURE, OPENAI, error
from sie_triton.doors.openapi import TEXT, TIMEOUT, posted
from sie_triton.doors.openapi_dialects import Plain
from sie_triton.doors.schemas import STRING, closed, record
from sie_triton.errors import InputError

TASKS = {"transcriptions": "transcribe", "translations": "translate"}

# Fields of the form by the names that the contract and the client use.
FIELDS = {AUDIO.name: "file", "instruction": "prompt"}


class Speech(Body):
    """Fields of a form with a sound. Values that ask for the only way of the server are allowed."""

    model_config = ConfigDict(extra="forbid")

    model: ModelName
    file: Annotated[bytes, Field(description="a file: WAV, FLAC, OGG or MP3", json_schema_extra={"format": "binary"})]
    language: str | None = Field(None, description="of the speech, such as en; by default detected")
    prompt: str | None = Field(None, description="text that comes before the speech")
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: Literal["0", "0.0"] = "0"
    stream: Literal["false", "False"] = "false"
    granularities: list[Literal["segment"]] | None = Field(None, alias="timestamp_granularities[]")


def routes(door: Door) -> list[Route]:
    def answering(task: str) -> DoorEndpoint:
        handler, told = partial(answer, task), partial(document, task)
        return DoorEndpoint(door, handler, dialect=OPENAI._replace(body=failed), types=[MULTIPART], document=told)

    return [post(f"/v1/audio/{name}", answering(task)) for name, task in TASKS.items()]


def document(task: str, specs: Sequence[ModelSpec]) -> Mapping[str, Any]:
    schema, languages = Speech.model_json_schema(schema_generator=Plain), task == TASKS["transcriptions"]
    # A form has no null.
    plain = {name: {**each, **each.pop("anyOf", [{}])[0]} for name, each in schema["properties"].items()}
    given = {name: {k: v for k, v in each.items() if k != "anyOf"} for name, each in plain.items()}
    if not languages:
        del given["language"]
    names = [spec.model for spec in specs if AUDIO.name in spec.inputs and "extract" in spec.tasks]
    given["model"] |= {"enum": names} if names else {"pattern": r"^\w+/\w+$"}
    summary = f"{task.capitalize()} speech, in OpenAI's format."
    more: dict[str, Any] = {"read": [MULTIPART], "written": [JSON, TEXT], "error": FAILURE}
    return posted(summary, closed(given, *schema["required"]), None, record(text=STRING), parameters=[TIMEOUT], **more)


async def answer(task: str, request: DoorRequest) -> Answer | Response:
    wanted, door = Speech.of(request), request.door
    if task != TASKS["transcriptions"] and wanted.language is not None:
        raise InputError.at("language", "is not read here; translations are English")
    items = [{AUDIO.name: wanted.file}]
    options = {"task": task, "language": wanted.language, "instruction": wanted.prompt}
    async with Explaining(door, wanted.model, "extract", items):
        (result,) = await door.backend.extract(wanted.model, items, [], None, request.seconds, options)
    return answered(request, wanted.response_format, task, result["data"])


def answered(request: DoorRequest, form: str, task: str, told: Mapping[str, Any]) -> Answer | Response:
    """Return what the model has written in one of OpenAI's formats."""
    if form == "json":
        return request.answer({"text": told["text"]})
    if form == "verbose_json":
        segments = [{"id": i, **each} for i, each in enumerate(told["segments"])]
        whole = {"language": told["language"], "duration": told["duration_ms"] / 1000, "text": told["text"]}
        return request.answer({"task": task, **whole, "segments": segments})
    return PlainTextResponse(f"{told['text']}\n" if form == "text" else subtitles(told["segments"], form))


def failed(failure: Failure) -> Any:
    """Return the body of a failure, which names the field of the form."""
    told = error(failure)
    param = told["error"]["param"]
    return {"error": {**told["error"], "param": FIELDS.get(param, param)}}


def subtitles(segments: Sequence[Mapping[str, Any]], form: str) -> str:
    """Return segments as SubRip or WebVTT.

    >>> subtitles([{"start": 0.5, "end": 3661.25, "text": "Hello"}], "srt")
    '1\\n00:00:00,500 --> 01:01:01,250\\nHello\\n\\n'
    """
    mark = "," if form == "srt" else "."
    cues = [
        f"{f'{i}{chr(10)}' if form == 'srt' else ''}{clock(each['start'], mark)} --> {clock(each['end'], mark)}\n"
        f"{each['text'].replace('-->', '->')}\n\n"
        for i, each in enumerate(segments, 1)
    ]
    return ("" if form == "srt" else "WEBVTT\n\n") + "".join(cues)


def clock(seconds: float, mark: str) -> str:
    milliseconds = round(1000 * seconds)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{mark}{rest % 1000:03}"
