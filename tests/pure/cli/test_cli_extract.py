"""Output of `sie-triton extract`, and its message without a server."""

import json
import shlex

import pytest
from click.testing import CliRunner

from sie_triton import client
from sie_triton.cli import cli
from sie_triton.cli.bulk.lines import InputLine
from sie_triton.cli.bulk.records import error_record
from sie_triton.cli.extract import FindingsOut
from sie_triton.client.types import ExtractOptions
from sie_triton.models import families
from sie_triton.server.serve import example
from tests.support.stages import spec

URL = "http://127.0.0.1:9"

TEXT = "Ada Lovelace lived\tin New York City."
NONE = {"entities": [], "relations": [], "classifications": [], "objects": [], "data": {}}


def entity(words, label, text=TEXT):
    start = text.index(words)
    return {"text": words, "label": label, "score": 0.91234, "start": start, "end": start + len(words)}


FOUND = {
    **NONE,
    "entities": [entity("York", "name"), entity("New York City", "city"), entity("Ada Lovelace", "person")],
    "relations": [{"head": "Ada Lovelace", "tail": "New York City", "relation": "lived in", "score": 0.5}],
    "classifications": [{"label": "bio\tgraphy", "score": 1.0}],
    "data": {"who": ["Ada", "naïve [b]"]},
}
SEEN = {
    **NONE,
    "entities": [
        {"text": "Rue\tMorgue", "label": "text", "score": 0.5, "bbox": [1.4, 2, 30, 41.6]},
        {"text": "nowhere", "label": "text", "score": 0.25, "bbox": None},
    ],
    "objects": [{"label": "traffic light", "score": 0.91234, "bbox": [-3.2, 4.0, 50.5, 61.0]}],
}


@pytest.fixture
def printed(capfdbinary):
    """Return a function that prints results of texts, and returns the lines."""

    def show(*results):
        FindingsOut().write([InputLine(i, {"text": TEXT}) for i, _ in enumerate(results, 1)], results)
        return capfdbinary.readouterr().out.decode().splitlines()

    return show


def test_findings_in_images_and_on_pages_are_lines(printed):
    lines = printed(SEEN, {"pages": [{**SEEN, "page": 3}, {**SEEN, "page": 7}], "token_count": 1})
    assert [line.split("\t")[0] for line in lines[::3]] == ["1", "2:3", "2:7"]
    assert lines[:3] == [
        "1\tline\ttext\t0.5000\tRue Morgue\t1\t2\t30\t42",
        "1\tline\ttext\t0.2500\tnowhere",
        "1\tobject\ttraffic light\t0.9123\t-3\t4\t50\t61",
    ]


def test_findings_in_texts_and_errors_are_lines(printed):
    assert printed(NONE, FOUND, error_record(InputLine(3), "is blank")) == [
        "2\tentity\tname\t0.9123\t26\t30\tYork",
        "2\tentity\tcity\t0.9123\t22\t35\tNew York City",
        "2\tentity\tperson\t0.9123\t0\t12\tAda Lovelace",
        "2\trelation\tlived in\t0.5000\tAda Lovelace\tNew York City",
        "2\tclassification\tbio graphy\t1.0000",
        '2\tdata\t{"who": ["Ada", "naïve [b]"]}',
        "3\terror\tis blank",
    ]


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        (["--threshold", "2", "text"], b"", "2.0 is not in the range 0<=x<=1"),
        (["--image", "missing.jpg"], b"", "File 'missing.jpg' does not exist"),
    ],
)
def test_a_wrong_call_ends_with_status_2_and_a_message(arguments, given, message):
    done = CliRunner().invoke(cli, ["extract", "org/model", "--url", URL, *arguments], given)
    assert (done.exit_code, message in done.output) == (2, True), done.output


@pytest.mark.parametrize(
    ("family", "said"), [("owlv2", f" --url {URL} --image picture.jpg --labels person,car"), ("gliner", "curl -s ")]
)
def test_serve_shows_an_extract_command_for_the_model(family, said):
    inputs = families.family(family).inputs
    shown = example(spec(family=family, inputs=inputs, tasks=("extract",), dims={}), URL)
    assert said in shown
    if family == "owlv2":
        command, *arguments = shlex.split(shown.replace("picture.jpg", "missing.jpg"))
        assert command == "sie-triton"
        assert "File 'missing.jpg' does not exist" in CliRunner().invoke(cli, arguments).output


@pytest.fixture
def asked(monkeypatch):
    """List of the calls of a client without a server."""
    calls = []

    def extract(client, model, items, labels, **options):
        calls.append((model, items, labels, options))
        return [{**FOUND, "timing": {}} for _ in items]

    monkeypatch.setattr(client.SIEClient, "extract", extract)
    return calls


def test_extract_sends_the_given_model_items_and_options(asked):
    arguments = ["org/model", "Ada", "--labels", "a,b", "--lora", "banking", "--threshold", "0.5", "--url", URL]
    arguments += ["--profile", "p", "--instruction", "who?", "--options", '{"top_k": 3}']
    CliRunner().invoke(cli, ["extract", *arguments], catch_exceptions=False)
    options = {"threshold": 0.5, "lora": "banking", "profile": "p", "instruction": "who?", "options": {"top_k": 3}}
    assert asked == [("org/model", [{"text": "Ada"}], ["a", "b"], options)]
    assert {*options} <= {*ExtractOptions.__annotations__}


def test_extract_reads_and_writes_files(asked, tmp_path):
    source, output = tmp_path / "texts.txt", tmp_path / "found.jsonl"
    source.write_text("Ada\n" * 600)
    arguments = ["extract", "org/model", "--url", URL, "--input", str(source), "--labels", "a" * 128]
    done = CliRunner().invoke(cli, [*arguments, "--output", str(output)], catch_exceptions=False)
    assert (done.exit_code, done.stdout) == (0, "")
    assert [json.loads(line) for line in output.read_text().splitlines()] == [FOUND] * 600
    assert sorted(len(items) for _, items, _, _ in asked) == [100, 500]
    done = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False)
    assert done.stdout == output.read_text()
