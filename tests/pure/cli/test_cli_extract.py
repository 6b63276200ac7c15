"""Output of `sie-triton extract`, and its message without a server."""

import io
import json
import shlex

import pytest
from click.testing import CliRunner
from PIL import Image
from rich.console import Console

from sie_triton import client
from sie_triton.cli import cli, extract_output
from sie_triton.cli.bulk.lines import Line
from sie_triton.cli.bulk.records import error_record
from sie_triton.cli.drawing import drawn, save
from sie_triton.client.types import ExtractOptions
from sie_triton.errors import InputError
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
def printed(monkeypatch):
    """Return a function that prints results of TEXT on a console of these options."""

    def show(*results, **console):
        stream = io.StringIO()
        monkeypatch.setattr(extract_output, "Console", lambda **_: Console(file=stream, width=80, **console))
        monkeypatch.setattr(extract_output, "write_out", lambda content: stream.write(content.decode()))
        extract_output.FindingsOut().write([Line(i, {"text": TEXT}) for i, _ in enumerate(results, 1)], results)
        return stream.getvalue()

    return show


def test_each_page_of_a_pdf_is_reported(printed):
    pages = [{**SEEN, "page": 3}, {**SEEN, "page": 7}]
    lines = printed(SEEN, {"pages": pages, "token_count": 1}).splitlines()
    assert list(dict.fromkeys(line.split("\t")[0] for line in lines)) == ["1", "2:3", "2:7"]
    shown = printed({"pages": pages, "token_count": 1}, **IN_COLOUR)
    assert f"{TEXT[-9:]}:3" in shown.replace("\n", " ")
    assert f"{TEXT[-9:]}:7" in shown.replace("\n", " ")


IN_COLOUR = {"force_terminal": True, "color_system": "standard", "no_color": False}


def test_terminal_output_colours_entities_and_their_labels(printed):
    text, *rows = printed(FOUND, **IN_COLOUR).splitlines()
    bold, italic, end = "\x1b[1;3{}m", "\x1b[3;3{}m", "\x1b[0m"
    assert text.startswith(f"{bold.format(2)}Ada Lovelace{end}{italic.format(2)} person{end} lived")
    assert f"in {bold.format(5)}New York City{end}{italic.format(5)} city{end}" in text
    assert text.endswith(f"{italic.format(6)} name: York{end}.")
    table = "\n".join(rows)
    for cells in (["lived in", "New York City", "0.5000"], ["graphy", "1.0000"], ["who", "Ada"], ["naïve [b]"]):
        assert all(cell in table for cell in cells)


def test_terminal_output_shows_image_findings_in_tables(printed):
    output = printed(SEEN, **IN_COLOUR)
    assert TEXT.split()[0] in output.splitlines()[0]
    for cells in (
        ["Morgue", "0.5000", "1, 2, 30, 42"],
        ["nowhere", "0.2500"],
        ["traffic light", "-3, 4, 50, 61"],
    ):
        assert all(cell in output for cell in cells)


def test_findings_in_images_are_printed_as_lines_without_a_terminal(printed):
    assert printed(SEEN).splitlines() == [
        "1\tline\ttext\t0.5000\tRue Morgue\t1\t2\t30\t42",
        "1\tline\ttext\t0.2500\tnowhere",
        "1\tobject\ttraffic light\t0.9123\t-3\t4\t50\t61",
    ]


@pytest.mark.parametrize("console", [{}, {**IN_COLOUR, "no_color": True}, {**IN_COLOUR, "color_system": None}])
def test_findings_in_texts_are_printed_as_lines_without_a_terminal(printed, console):
    assert printed(NONE, FOUND, **console).splitlines() == [
        "2\tentity\tname\t0.9123\t26\t30\tYork",
        "2\tentity\tcity\t0.9123\t22\t35\tNew York City",
        "2\tentity\tperson\t0.9123\t0\t12\tAda Lovelace",
        "2\trelation\tlived in\t0.5000\tAda Lovelace\tNew York City",
        "2\tclassification\tbio graphy\t1.0000",
        '2\tdata\t{"who": ["Ada", "naïve [b]"]}',
    ]


def test_skipped_errors_are_printed_in_their_place(printed):
    records = [FOUND, error_record(Line(2), "is blank"), NONE]
    assert "2\terror\tis blank" in printed(*records).splitlines()
    assert f"{TEXT[-5:]}\x1b[1;31m is blank" in printed(*records, **IN_COLOUR).replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "given", "message"),
    [
        (["--threshold", "2", "text"], b"", "2.0 is not in the range 0<=x<=1"),
        (["--image", "missing.jpg"], b"", "File 'missing.jpg' does not exist"),
        (["--draw", "out.png", "text"], b"", "--draw: needs one --image, not 0"),
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


def test_objects_are_drawn_in_the_upright_image():
    objects = [
        {"label": "a", "score": 0.9, "bbox": [20, 30, 60, 80]},
        {"label": "b", "score": 0.8, "bbox": [-9, 3, 1, 60]},
    ]
    picture = drawn(Image.new("RGB", (100, 90)), objects)
    assert picture.getpixel((40, 30)) == picture.getpixel((60, 60)) == (230, 25, 75)
    assert picture.getpixel((1, 50)) == (60, 180, 75)
    assert picture.getpixel((80, 10)) == (0, 0, 0)


def test_an_image_that_cannot_be_drawn(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"a\.png: cannot be drawn into .*b\.png"):
        save(tmp_path / "a.png", [], tmp_path / "b.png")


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
