"""What `sie-triton eval` refuses before it measures, and a reference server's answers."""

from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest
from click.testing import CliRunner

from sie_triton.cli import cli
from sie_triton.cli.evaluation import http_api, run
from sie_triton.errors import InputError, ServerError, SIEError, Unreachable
from tests.support.http_stub import answering

GARDEN = Path(__file__).parents[3] / "support" / "kitchen_garden"


def evaluate(*arguments):
    given = ["eval", "org/model", "-t", str(GARDEN), "--url", "grpc://127.0.0.1:9", *arguments]
    return CliRunner().invoke(cli, given, catch_exceptions=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-s", "targets"], "-s targets: name one source or several"),
        (["-s", "sie,sie"], "-s sie,sie: name one source or several, each once"),
        (["-s", "sie,targets"], "has no metrics for org/model, but for sentence-transformers/all-MiniLM-L6-v2"),
        (["-s", "nothing", "--type", "perf"], "-s 'nothing' is not a source; name sie, st"),
        (["--type", "perf", "--by", "score"], "--type perf measures encode"),
        (["-t", "no-such-place"], "-t no-such-place: is no directory and no task mteb/NAME; a dataset is a directory"),
    ],
)
def test_arguments_are_checked_first(arguments, said):
    with pytest.raises(InputError) as refused:
        evaluate(*arguments)
    assert said in str(refused.value)


def test_what_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(run, "find_spec", lambda module: None)
    with pytest.raises(ServerError, match=r"^eval needs matplotlib, sentence-transformers, mteb: pip install 'sie-tri"):
        evaluate("-s", "sie,st", "--plot", "a.png")
    with pytest.raises(ServerError, match=r"^eval needs httpx: "):
        evaluate("-s", "reference=http://127.0.0.1:9", "--type", "perf")


@pytest.mark.parametrize("source", ["st", "st=/nowhere"])
def test_a_directory_that_is_not_here_is_refused_before_any_work(monkeypatch, source):
    monkeypatch.setattr(run, "find_spec", lambda module: True)
    monkeypatch.setattr(run, "_read", lambda asked: pytest.fail("the dataset is read"))
    with pytest.raises(InputError, match=f"^-s {source}: .*; give .* st=DIRECTORY$"):
        evaluate("-s", f"sie,{source}")


@contextmanager
def reference(*answers):
    """Yield a client of a reference server with these answers."""
    left = [*answers]
    with answering(lambda asked: (*left.pop(0), {"Retry-After": "0"})) as port:
        api = http_api.HttpApi(f"http://127.0.0.1:{port}", "org/model", 30, max_answer_bytes=4000)
        yield api
        api.close()


def test_a_server_that_loads_the_model_is_asked_again():
    found = msgpack.packb({"items": [{"dense": {"values": [1.0, 2.0]}}]})
    with reference((503, b"loading"), (202, b""), (200, found)) as api:
        assert api.encode(["text"], "dense", is_query=True) == [{"values": [1.0, 2.0]}]


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (404, b"no such model", "/v1/encode/org/model: status 404: no such model"),
        (200, b"<html>", "is this SIE's HTTP API"),
        (200, msgpack.packb([1]), "has no items"),
        (200, msgpack.packb({"items": []}), "returned 0 results for 1 texts"),
        (200, msgpack.packb({"items": [{"sparse": {}}]}), "has no dense"),
        (200, bytes(5000), "the answer has more than 4000 bytes"),
    ],
)
def test_answers_that_are_none(status, body, said):
    with pytest.raises(SIEError) as failed, reference((status, body)) as api:
        api.encode(["text"], "dense", is_query=False)
    assert said in str(failed.value)


def test_nobody_answers():
    with pytest.raises(Unreachable, match=r"^http://127\.0\.0\.1:9: no server of SIE's HTTP API answers"):
        http_api.HttpApi("http://127.0.0.1:9", "org/model", 30).score("query", ["text"])
