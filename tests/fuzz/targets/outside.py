"""What other servers answer: the model hub, object stores, endpoints of remote models; and lines of logs."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from huggingface_hub.hf_api import HfApi, ModelInfo
from hypothesis import strategies as st

from sie_triton.cluster.payloads import PATH
from sie_triton.contract.error_prefix import without_prefix
from sie_triton.engines.remote.refusals import failure
from sie_triton.engines.remote.responses import embeddings, num_read, parsed, probabilities
from sie_triton.errors import LoadError, ModelError, SIEError
from sie_triton.models.weights import hub
from sie_triton.models.weights.cluster import MODEL, MODEL_BLOB, Manifest
from sie_triton.system.telemetry.identity import Trace
from sie_triton.system.telemetry.lines import as_json, for_people
from tests.fuzz.damage import damaged, one
from tests.fuzz.requests import WRITTEN
from tests.fuzz.target import Target
from tests.fuzz.targets.records import COMMIT, of_document

URL = "http://host:1"


@contextmanager
def hub_listings(directory: Path) -> Iterator[Target]:
    """Yield the target of what the hub tells of a model."""
    info = {
        "id": "org/m",
        "sha": COMMIT,
        "lastModified": "2026-01-01T00:00:00.000Z",
        "siblings": [{"rfilename": "config.json"}, {"rfilename": "onnx/model.onnx", "size": 5, "lfs": None}],
        "tags": ["a"],
        "cardData": {"license": "mit", "language": ["en"]},
        "safetensors": {"parameters": {"F32": 5}, "total": 5},
    }
    home = directory / "hub"

    def run(text: bytes) -> None:
        with patch.object(HfApi, "model_info", lambda *_, **__: ModelInfo(**json.loads(text))):
            found = hub._ask("org/m", "main", home)
        assert found.commit == COMMIT or hub.COMMIT.fullmatch(found.commit)
        assert not any(".." in Path(name).parts for name in found.files or ())

    yield Target(of_document(info), run, (LoadError,))


@contextmanager
def store_listings(directory: Path) -> Iterator[Target]:
    """Yield the target of manifests and names in an object store."""
    file = {"name": "config.json", "size": 5, "sha256": "b" * 64, "etag": "b" * 64}
    manifest = {"version": 1, "repo": "org/m", "commit": COMMIT, "files": [file, {**file, "name": "a/b.json"}]}
    names = [f"models--org--m/manifests/{COMMIT}.json", f"models--a/blobs/{'c' * 64}", "payloads/123/g.1"]
    cases = st.tuples(of_document(manifest), damaged([name.encode() for name in names]))

    def run(case: tuple[bytes, bytes]) -> None:
        text, name = case
        for pattern in (MODEL, MODEL_BLOB, PATH):
            pattern.fullmatch(name.decode(errors="replace"))
        for each in Manifest.read(text, "org/m", COMMIT).files.values():
            assert ".." not in Path(each.name).parts

    yield Target(cases, run, (ValueError, LoadError))


@contextmanager
def endpoints(directory: Path) -> Iterator[Target]:
    """Yield the target of responses of remote models' endpoints."""
    vectors = {"data": [{"index": i, "embedding": [0.5, 1]} for i in (1, 0)], "usage": {"prompt_tokens": 5}}
    scores = ({"scores": [[0.5, 0.5], [1, 0]]}, {"data": [{"index": i, "score": 0.5} for i in (0, 1)]})
    refused = ({"error": {"message": "too long", "code": 400}}, {"detail": ["no"]})
    dates = ("7", "", "soon", "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 -9999", "nan", "1e999", "-1")
    dates += ("Thu, 01 Jan 1970 00:00:00 +" + "9" * 30, "1 Jan 99999 0:0:0 GMT", "0 0 0 0 0", "9" * 5000)
    after = st.one_of(one(dates), damaged([each.encode() for each in dates]).map(lambda text: text.decode("latin-1")))
    cases = st.tuples(of_document(vectors, *scores, *refused), one((200, 300, 400, 401, 429, 500, 503)), after)
    yield Target(cases, lambda case: read_response(*case), (ModelError,))


def read_response(body: bytes, status: int, retry_after: str) -> None:
    """Read a response as embeddings and as scores, or as an error."""
    error = failure(URL, status, retry_after, body)
    assert isinstance(error, SIEError)
    assert len(str(error)) < 1000
    answer = parsed(URL, body)
    num_read(answer)
    for read in (embeddings, probabilities):
        try:
            found = read(URL, answer, 2)
        except ModelError:
            continue
        assert len(found) == 2


@contextmanager
def log_lines(directory: Path) -> Iterator[Target]:
    """Yield the target of lines of logs, and of texts that tell of requests; parts of them come from clients."""
    lines = (
        'I1126 10:12:33.125073 1189 grpc_server.cc:2558] "Started GRPCInferenceService at 127.0.0.1:8001"',
        "2026-11-26 10:13:00,892 INFO sie_triton.pipeline.worker.calibration: calibrated",
        '{"timestamp": "2026-11-26T10:13:00.892Z", "level": "INFO", "logger": "x", "message": "y"}',
        '{"timestamp": ' + "[" * 3000,
        "[busy retry=1 field=text[2]] 512 requests",
        "[load.not_found] a] b",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "a-b-c",
        *WRITTEN,
    )
    form = as_json("workers")

    def run(text: bytes) -> None:
        line = text.decode(errors="replace")
        for_people(line)
        made = form(line)
        assert not made or isinstance(json.loads(made), dict) or line == made
        without_prefix(line)
        Trace.parse(line)
        Trace.unrecorded(line)

    yield Target(damaged([line.encode() for line in lines]), run)
