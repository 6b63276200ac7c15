"""The whole door as an ASGI application: every route, with paths, headers and bodies of any kind."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from starlette.routing import Route

from sie_triton.doors.app import application
from sie_triton.doors.endpoint import Door
from sie_triton.records.tokenizer_links import publish_tokenizer
from sie_triton.settings import read_settings
from tests.fuzz.asgi import Request, check_response, response_of
from tests.fuzz.damage import damaged, one
from tests.fuzz.models import saved_models
from tests.fuzz.pipeline import pipelines
from tests.fuzz.target import Target
from tests.fuzz.targets.wire import ARRAYS, AUDIO, BODIES, EXTENSIONS, FILE, PICTURE
from tests.fuzz.trees import ODD, changed, to_json, to_msgpack
from tests.fuzz.triton import LocalBackend

MODELS = ("org/bge-m3", "org/bge-m3", "org/cross-encoder", "org/gliner", "org/clip", "org/classifier")
NAMES = (
    *(*MODELS, "org%2Fbge-m3", "org/bge-m3:default", "org/gliner:other", "org/bge-m3:other", "org/bge-m3:nope"),
    *("org/bge-m3-preprocess", "org/broken", "x", "", "/", "..", "../x", ":", "a:b:c", "org/" + "n" * 600),
    *("%00", "%ff", "%ED%A0%80", "a%0Ab", "%20", "%E8%94%B7"),
)

IMAGE = f"data:image/png;base64,{PICTURE}"
TEXTS = ["Roses climb.", "Ships sail."]

# Bodies by the path of a route; {} stands for a model.
POSTED: Mapping[str, tuple[Any, ...]] = {
    "/v1/encode/{}": (*BODIES, AUDIO, {"items": [{"images": [FILE]}, {"image": IMAGE}]}),
    "/v1/score/{}": (BODIES[2], {"query": "q", "items": TEXTS}, {"query": {"images": [IMAGE]}, "items": TEXTS}),
    "/v1/extract/{}": (BODIES[3], {"items": TEXTS, "params": {"labels": ["flower"], "options": {"threshold": 0.1}}}),
    "/v1/embeddings": (
        {"model": "org/bge-m3", "input": TEXTS, "encoding_format": "base64", "user": "u", "dimensions": 8},
        {"model": "org/bge-m3:other", "input": "x", "profile": "other"},
        {"model": "org/clip", "input": [[1, 2], [3]]},
    ),
    "/embeddings": (
        {"model": "org/bge-m3", "input": "x", "overflow_policy": "error"},
        {"model": "org/clip", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": IMAGE}]}]},
    ),
    "/v1/chat/completions": ({"model": "org/bge-m3", "messages": [{"role": "user", "content": "x"}], "stream": True},),
    "/v1/completions": ({"model": "org/x", "prompt": "x"},),
    "/v1/responses": ({"model": "org/x", "input": "x"},),
    # Forms.
    "/v1/audio/transcriptions": (
        {"model": "org/bge-m3", "file": b"RIFF", "response_format": "srt", "timestamp_granularities[]": "segment"},
        {
            "model": "org/x",
            "file": b"--x\r\n",
            "language": "en",
            "prompt": "蔷薇",
            "temperature": "0",
            "stream": "false",
        },
    ),
    "/v1/audio/translations": ({"model": "org/gliner", "file": b"ID3"},),
    "/v1/batches": (
        {"input_file_id": "file-" + "0" * 32, "endpoint": "/v1/embeddings", "completion_window": "24h"},
        {"input_file_id": "x", "endpoint": "/v1/rerank", "completion_window": "24h", "metadata": {"a": "b"}},
    ),
    "/v1/batches/{}/cancel": ({},),
    "/v1/rerank": (
        {"model": "org/cross-encoder", "query": "q", "documents": TEXTS, "top_n": 1, "return_documents": True},
        {"model": "org/bge-m3", "query": "q", "documents": [{"text": "a", "b": "c"}], "rank_fields": ["b", "text"]},
    ),
    "/v2/rerank": (
        {"model": "org/cross-encoder", "query": "q", "documents": TEXTS, "max_tokens_per_doc": None, "priority": 0},
        {"model": "org/bge-m3", "query": "q", "documents": TEXTS, "top_n": 0, "overflow_policy": "error"},
        {"model": "org/x", "query": "q", "documents": TEXTS, "relevant_spans": {"mode": "disabled"}},
    ),
    "/v1/embed": (
        {"model": "org/bge-m3", "texts": TEXTS, "input_type": "search_query", "truncate": "NONE"},
        {"model": "org/clip", "images": [IMAGE], "embedding_types": ["float", "binary"]},
    ),
    "/v2/embed": (
        {
            "model": "org/clip",
            "inputs": [
                {"content": [{"type": "text", "text": "a"}]},
                {"content": [{"type": "image_url", "image_url": {"url": IMAGE}}]},
            ],
            "embedding_types": ["base64", "ubinary", "int8"],
            "output_dimension": 8,
        },
    ),
    "/": ({"inputs": TEXTS, "normalize": False},),
    "/embed": ({"inputs": "x", "truncate": True, "prompt_name": "query", "truncation_direction": "Right"},),
    "/embed_sparse": ({"inputs": TEXTS},),
    "/predict": ({"inputs": [["x"], ["y"]], "raw_scores": False}, {"inputs": "x"}),
    "/rerank": ({"query": "q", "texts": TEXTS, "return_text": True, "raw_scores": False},),
    "/embed_all": ({"inputs": TEXTS, "truncate": False},),
    "/similarity": (
        {"inputs": {"source_sentence": "x", "sentences": TEXTS}, "parameters": {"truncate": True, "prompt_name": "x"}},
    ),
    "/tokenize": ({"inputs": TEXTS, "add_special_tokens": False}, {"inputs": "\ud800 蔷薇 \U0001f339"}),
    "/decode": ({"ids": [[101, 7592, 102], []], "skip_special_tokens": False}, {"ids": [0, 1, 2**31]}),
    "/score": (
        {"model": "org/cross-encoder", "text_1": "q", "text_2": TEXTS, "truncate_prompt_tokens": -1},
        {"model": "org/cross-encoder", "queries": TEXTS, "documents": TEXTS, "use_activation": True, "user": "u"},
        {"model": "org/bge-m3", "queries": TEXTS, "items": TEXTS},
    ),
    "/v1/score": ({"model": "org/bge-m3", "data_1": "q", "data_2": TEXTS},),
    "/classify": ({"model": "org/classifier", "input": TEXTS}, {"model": "org/gliner", "input": "x"}),
    "/pooling": (
        {"model": "org/bge-m3", "input": TEXTS, "task": "token_embed", "encoding_format": "base64"},
        {"model": "org/bge-m3", "input": "x", "embed_dtype": "float32", "endianness": "little", "dimensions": 8},
    ),
}
FORM = b'--b\r\nContent-Disposition: form-data; name="%b"%b\r\nContent-Type: text/plain\r\n\r\n%b\r\n'
PURPOSE, UPLOADED = FORM % (b"purpose", b"", b"batch"), FORM % (b"file", b'; filename="f.jsonl"', b'{"custom_id": "1"}')

# Bodies of /v1/files.
FORMS = (PURPOSE + UPLOADED + b"--b--\r\n", UPLOADED + PURPOSE + b"--b--\r\n", PURPOSE + FORM % (b"x", b"", b"y"))

GOT = (
    *("/v1/files", "/v1/files?limit=1&order=asc", "/v1/files/{}", "/v1/files/{}/content", "/v1/batches?after={}"),
    *("/v1/batches", "/v1/batches/{}", "/v1/files?purpose=batch&limit=%ff", "/v1/batches?limit=-1"),
    *("/", "/v1/models", "/v1/models/{}", "/healthz", "/readyz", "/health", "/status", "/metrics", "/openapi.json"),
    *("/docs", "/info", "/page/main.js", "/page/..%2Fapp.py", "/ws/status", "/nowhere", "/v1/encode/{}", "//", "/v1/"),
)

JSON, MSGPACK = (b"application/json",), (b"application/msgpack", b"application/x-msgpack")
MULTIPART = (b"multipart/form-data; boundary=b", b"multipart/form-data", b'multipart/form-data; boundary="', b"\xff")
HEADERS: Mapping[str, tuple[bytes, ...]] = {
    "content-type": (*JSON, *MSGPACK, b"text/plain", b"", b";", b"\xff"),
    "accept": (*JSON, *MSGPACK, b"*/*", b"text/html", b"json, msgpack;q=nan", b"\xff", b"," * 999),
    "x-request-timeout": (b"5", b"nan", b"-1", b"1e400", b"0.000001", b"x", b"1_0", b"\xc2\xb2", b"9" * 5000, b""),
    "authorization": (b"Bearer x", b"Bearer", b"\xff", b"Basic eDp5", b""),
    "host": (b"localhost", b"[::1]:8080", b"evil.example", b"[", b"\xff", b"", b"127.0.0.1:99999"),
    "origin": (b"http://localhost", b"null", b"http://evil.example", b"\xff", b"://"),
    "content-length": (b"0", b"-1", b"x", b"99999999999999999999", b"5"),
    "content-encoding": (b"identity", b"gzip", b"\xff", b""),
    "traceparent": (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", b"00-x", b"-" * 500, b"\xff"),
    "x-request-id": (b"1", b"x" * 999, b"\xff", b"\n", b""),
    "x-sie-pool": (b"p", b"\xff"),
    "accept-encoding": (b"gzip",),
}


@contextmanager
def door(directory: Path) -> Iterator[Target]:
    settings = read_settings(
        data_dir=directory / "data", door_max_items=40, door_timeout_s=30, door_tei_model="org/bge-m3,org/cross-encoder"
    )
    names = ("bge-m3", "cross-encoder", "gliner", "classifier", "clip")
    with pipelines(saved_models(directory), directory, *names) as models, asyncio.Runner() as runner:
        door = runner.run(_door(settings, models))
        app, open_door = application(door), door.backend
        assert POSTED.keys() == {*posts_of(door)} - {"/v1/files"}, "each route that is posted to needs bodies here"
        settings.status_dir.mkdir(parents=True)
        for each in models.values():
            publish_tokenizer(settings.status_dir, each.spec, Path(each.spec.weights))
        runner.run(open_door.__aenter__())
        secrets = (str(directory).encode(), b"site-packages", b"Traceback (most")

        def run(request: Request) -> None:
            status, headers, body = runner.run(response_of(app, request))
            check_response(status, headers, body, secrets)

        yield Target(requests(), run)
        runner.run(open_door.__aexit__())


def posts_of(door: Door) -> set[str]:
    """Return the paths of all routes that are posted to, as in POSTED."""
    posts = [route.path for route in door.routes if isinstance(route, Route) and "POST" in (route.methods or ())]
    return {path.replace("{model:path}", "{}").replace("{batch_id}", "{}") for path in posts}


async def _door(settings: Any, models: Any) -> Door:
    return Door(settings, LocalBackend(settings, models))


def requests() -> SearchStrategy[Request]:
    """Return a strategy of requests: mostly to routes that there are, with bodies that fit them more or less."""
    headers = st.fixed_dictionaries({}, optional={name: one(values) for name, values in HEADERS.items()})
    one_header = st.one_of([st.fixed_dictionaries({name: one(values)}) for name, values in HEADERS.items()])
    few = st.one_of(st.just({}), st.just({"accept": b"application/json"}), st.just({}), one_header)
    posts = []
    for path, bodies in POSTED.items():
        if path.startswith("/v1/audio/"):
            written = [to_form(body) for body in bodies]
            kinds = st.tuples(st.one_of(one(written), damaged(written)), one((MULTIPART[0], *MULTIPART)))
            posts.append(st.builds(_post, one(NAMES), kinds, few, st.just(path)))
            continue
        as_json = st.tuples(changed(bodies).map(to_json), one(JSON))
        broken = st.tuples(damaged([to_json(body) for body in bodies]), one(JSON))
        packed = changed(bodies, (*ODD, *ARRAYS, *EXTENSIONS)).map(to_msgpack)
        as_msgpack = st.tuples(packed, one(MSGPACK[:1]))
        kinds = st.one_of(as_json, as_json, as_msgpack, broken) if "{}" in path else st.one_of(as_json, as_json, broken)
        posts.append(st.builds(_post, one(NAMES), kinds, few, st.just(path)))
    forms = st.tuples(damaged(FORMS), one((MULTIPART[0], *MULTIPART)))
    posts.append(st.builds(_post, one(NAMES), forms, few, st.just("/v1/files")))
    gets = st.builds(_get, one(("GET", "GET", "HEAD", "POST", "DELETE", "OPTIONS", "x")), one(GOT), one(NAMES), headers)
    return st.one_of(*posts, gets)


def to_form(fields: Mapping[str, Any]) -> bytes:
    """Return a form; bytes are files."""
    parts = []
    for name, value in fields.items():
        head, content = ('; filename="a"', value) if isinstance(value, bytes) else ("", str(value).encode())
        parts.append(f'--x\r\nContent-Disposition: form-data; name="{name}"{head}\r\n\r\n'.encode() + content)
    return b"\r\n".join([*parts, b"--x--\r\n"])


def _post(name: str, body: tuple[bytes, bytes], headers: dict[str, bytes], path: str) -> Request:
    content, kind = body
    return Request("POST", path.replace("{}", name), {"content-type": kind, **headers}, content)


def _get(method: str, path: str, name: str, headers: dict[str, bytes]) -> Request:
    return Request(method, path.replace("{}", name), headers, b"")
