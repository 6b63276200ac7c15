"""Options of `sie-triton encode` and `score`, and what they print in a terminal."""

import io
import json
from dataclasses import fields
from types import SimpleNamespace

import click
import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from sie_triton import client
from sie_triton.cli import cli
from sie_triton.cli import encode as encode_module
from sie_triton.cli import score as score_module
from sie_triton.cli.bulk.lines import InputLine
from sie_triton.cli.bulk.options import BulkOptions
from sie_triton.cli.bulk.records import error_record, write_out
from sie_triton.cli.encode import IN_OPTIONS as IN_OPTIONS_OF_ENCODE
from sie_triton.cli.options import ADDRESS
from sie_triton.cli.score import IN_OPTIONS as IN_OPTIONS_OF_SCORE
from sie_triton.client.types import EncodeOptions, ScoreOptions
from sie_triton.contract import VERBS
from sie_triton.errors import SIEError
from sie_triton.models.families import model_of
from tests.support.stages import spec

URL = "http://127.0.0.1:9"
ARGUMENTS = {"model", "texts", "images", "query", "format"}

COMMANDS = pytest.mark.parametrize(
    ("command", "options", "in_options"),
    [("encode", EncodeOptions, IN_OPTIONS_OF_ENCODE), ("score", ScoreOptions, IN_OPTIONS_OF_SCORE)],
)


def parameters_of(command):
    shared = {field.name for field in fields(BulkOptions)} | {*ADDRESS}
    return {parameter.name for parameter in cli.get_command(click.Context(cli), command).params} - shared - ARGUMENTS


@COMMANDS
def test_flags_are_the_arguments_of_the_client_and_parameters_of_the_contract(command, options, in_options):
    """Score has no flag `pages`, because the command sends texts only."""
    of_client = {*options.__annotations__} - {"timeout"} - ({"pages"} if command == "score" else set())
    assert parameters_of(command) == of_client | {*in_options}
    dims, modes = {"dense": 4, "sparse": 9, "multivector": 4}, ("dense", "sparse")
    model = model_of(spec(family="bge_m3", dims=dims, score_modes=modes, tasks=("encode", "score")))
    assert {*in_options} <= {parameter.name for parameter in VERBS[command].parameters(model)}


@pytest.fixture
def sent(monkeypatch):
    """List of the calls of a client without a server."""
    calls = []

    def encode(_, model, items, **options):
        calls.append((model, items, options))
        return [{"dense": np.float32([0.1, 2]), "token_count": 3, "timing": {}, **_id(item)} for item in items]

    def score(_, model, query, items, **options):
        calls.append((model, query, [item["text"] for item in items], options))
        entries = [{"item_id": item["id"], "score": float(len(item["text"])), "rank": 0} for item in items]
        return {"model": model, "scores": entries[::-1]}

    monkeypatch.setattr(client.SIEClient, "encode", encode)
    monkeypatch.setattr(client.SIEClient, "score", score)
    return calls


def _id(item):
    return {"id": item["id"]} if "id" in item else {}


def invoke(*arguments, given=None):
    return CliRunner().invoke(cli, [*map(str, arguments), "--url", URL], given, catch_exceptions=True)


def test_encode_sends_items_and_options(sent, tmp_path):
    image = tmp_path / "a.png"
    image.write_bytes(b"0")
    flags = ["--is-query", "--dimensions", 2, "--no-normalize", "--options", '{"power": 3}', "--lora", "legal"]
    done = invoke("encode", "org/m", "a", "--image", image, "--output-types", "dense", "--output-dtype", "int8", *flags)
    options = {"is_query": True, "output_types": "dense", "output_dtype": "int8", "lora": "legal"}
    options["options"] = {"power": 3, "dimensions": 2, "normalize": False}
    assert sent == [("org/m", [{"text": "a"}, {"image": image}], options)]
    assert done.output == '{"dense":[0.1,2.0],"token_count":3}\n' * 2


@pytest.mark.parametrize(
    ("name", "flags", "content"),
    [
        ("a.txt", [], "x\ny\n"),
        ("a.jsonl", [], '{"text": "x", "id": 7}\n{"text": "y"}'),
        ("a.txt", ["--field", "body"], '{"body": "x", "text": 1, "id": 7}\n{"body": "y"}'),
    ],
)
def test_encode_reads_lines(sent, tmp_path, name, flags, content):
    (tmp_path / name).write_text(content)
    done = invoke("encode", "org/m", "--input", tmp_path / name, *flags)
    assert [item["text"] for item in sent[0][1]] == ["x", "y"]
    assert [list(json.loads(line)) for line in done.stdout.splitlines()] == [
        [*(["id"] if "7" in content else []), "dense", "token_count"],
        ["dense", "token_count"],
    ]
    if not flags and name == "a.txt":
        assert invoke("encode", "org/m", given=content).stdout == done.stdout
        assert invoke("encode", "org/m", "--input", "-", given=content).stdout == done.stdout


def test_encode_writes_rows(sent, tmp_path):
    done = invoke("encode", "org/m", "x", "y", "--output", tmp_path / "a.npy")
    assert sent[0][2] == {"output_types": "dense"}
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.float32([[0.1, 2]] * 2))
    assert (done.stdout, done.stderr.startswith(f"{tmp_path}/a.npy: 2 lines in ")) == ("", True)


def test_score_ranks_over_all_lines(sent, tmp_path):
    lines = [f"{'x' * (7 * i % 1000)}y" for i in range(1200)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    done = invoke("score", "org/m", "who?", "--input", tmp_path / "a.txt", "--score-mode", "sparse")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(sent) > 5
    assert {(model, query, options["options"]["score_mode"]) for model, query, _, options in sent} == {
        ("org/m", "who?", "sparse")
    }
    assert [each["item_id"] for each in found] == [f"item-{i}" for i in range(1200)]
    assert [each["score"] for each in found] == [len(line) for line in lines]
    in_order = sorted(range(1200), key=lambda i: -len(lines[i]))
    assert [found[i]["rank"] for i in in_order] == list(range(1200))


def test_pairs_are_scored_with_their_own_query(sent, tmp_path):
    pairs = [{"query": "a", "text": "x"}, {"query": "a", "text": "xy", "id": 7}, {"query": "b", "text": "xyz"}]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    done = invoke("score", "org/m", "--input", tmp_path / "pairs.jsonl", "--output", tmp_path / "out.jsonl")
    assert sorted(call[1:3] for call in sent) == [("a", ["x", "xy"]), ("b", ["xyz"])]
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [
        {"item_id": "item-0", "score": 1.0},
        {"item_id": "7", "score": 2.0},
        {"item_id": "item-2", "score": 3.0},
    ], done.output


def test_skipped_errors_end_with_status_1(sent, tmp_path):
    done = invoke("encode", "org/m", "--skip-errors", "--output", tmp_path / "a", given="x\n\ny\n")
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, "1 of 3 lines have an error")
    assert '{"line":2,"error":"is blank"}' in (tmp_path / "a").read_text().splitlines()
    assert len(sent[0][1]) == 2


def test_an_error_says_how_to_go_on(sent, tmp_path):
    (tmp_path / "a.txt").write_text("x\n" * 1024 + "\n")
    done = invoke("encode", "org/m", "--input", tmp_path / "a.txt", "--output", tmp_path / "a.jsonl")
    assert str(done.exception).startswith("line 1025: is blank; with --skip-errors, ")
    assert done.stderr == f"{tmp_path}/a.jsonl.part has 1,024 lines; the same command continues it\n"
    done = invoke("encode", "org/m", "--input", tmp_path / "a.txt", "--output", tmp_path / "a.jsonl", "--skip-errors")
    assert ([len(items) for _, items, _ in sent], done.exit_code) == ([512] * 3, 1)
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 1025


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["encode", "m", "x", "--input", __file__], "--input is for lines of a file"),
        (["encode", "m", "x", "--field", "a"], "--field is for lines of a file"),
        (["encode", "m", "--input", "missing"], "'missing' does not exist"),
        (["encode", "m", "x", "--format", "npy"], "--format npy: needs --output FILE"),
        (["encode", "m", "x", "--output", "a.npy", "--skip-errors"], "--skip-errors: a row of an .npy file cannot be"),
        (["encode", "m", "x", "--output", "a.npy", "--output-types", "sparse"], "not sparse; give dense or muvera"),
        (["encode", "m", "x", "--output", "a.npy", "--output-types", "dense,muvera"], "not dense,muvera; give dense"),
        (["encode", "m", "x", "--options", "{"], "'{' is not JSON"),
        (["encode", "m", "x", "--options", "[1]"], "'[1]' is not a JSON object"),
        (["encode", "m", "x", "--max-concurrency", "0"], "0 is not in the range"),
        (["encode", "m", "x", "--output-dtype", "int4"], "'int4' is not one of"),
        (["score", "m", "q", "--score-mode", "cosine"], "'cosine' is not one of"),
    ],
)
def test_a_wrong_call_ends_with_status_2_and_a_message(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert (done.exit_code, message in " ".join(done.output.split())) == (2, True), done.output
    assert [*tmp_path.iterdir()] == []


@pytest.fixture
def screen(monkeypatch):
    """Text of a terminal of 70 columns."""
    stream = io.StringIO()
    for module in (encode_module, score_module):
        monkeypatch.setattr(module, "Console", lambda **_: Console(file=stream, width=70, force_terminal=False))
    return stream


LINES = [
    InputLine(1, {"text": "Hello,\n world"}),
    InputLine(2, {"text": "word " * 30}),
    InputLine(3, {"text": "c"}, query="who?"),
]


def test_vectors_are_summarised(screen):
    sparse = {"indices": np.arange(9), "values": np.float32([0, 3, 0, 1, 5, 2, 0, 0, 4])}
    both = {"dense": np.arange(8, dtype=np.float32), "sparse": sparse, "token_count": 9, "truncated": True}
    rows = {"multivector": np.zeros((2, 3), np.int8), "token_count": 1}
    parts = {"pages": [{"page": 3, **rows}], "chunks": [{"start": 4, "end": 90, **rows}], "token_count": 1}
    encode_module.Summaries().write(LINES, [both, error_record(LINES[1], "is blank"), parts])
    assert [line.rstrip() for line in screen.getvalue().splitlines()] == [
        "1  Hello, world",
        " dense       8 × float32   0.0000  1.0000  2.0000  3.0000  …",
        " sparse      9 entries     #4 5.0000  #8 4.0000  #1 3.0000  …",
        " truncated   9 tokens      the rest of the text was not read",
        f"2  {('word ' * 30)[:66]}…",
        " error      is blank",
        "3  c",
        " page 3 multivector   2 × 3 × int8   0  0  0  0  …",
        " 4:90 multivector     2 × 3 × int8   0  0  0  0  …",
    ]


def test_the_best_lines_are_in_the_table(screen):
    table = score_module.RankedTable(max_rows=2)
    table.write(LINES[:2], [{"item_id": "item-0", "score": 0.5}, {"item_id": "7", "score": 0.25}])
    table.write(LINES[2:], [{"item_id": "item-2", "score": 0.75}])
    table.finish()
    assert [line.split() for line in screen.getvalue().splitlines()] == [
        ["rank", "score", "item", "text"],
        ["0", "0.7500", "item-2", "c"],
        ["1", "0.5000", "item-0", "Hello,", "world"],
        ["1", "more;", "--json", "prints", "all"],
    ]


def test_pairs_are_shown_with_their_query(screen):
    score_module.PairTable().write(LINES[2:], [{"item_id": "item-2", "score": 0.75}])
    score_module.PairTable().write(LINES[:1], [error_record(LINES[0], "is blank")])
    assert [line.split() for line in screen.getvalue().splitlines()] == [
        ["0.7500", "who?", "c"],
        ["is", "blank", "Hello,", "world"],
    ]


@pytest.mark.parametrize(
    ("flags", "is_tty", "expected"),
    [([], True, (True, True)), (["--json"], True, (True, False)), ([], False, (False, False))],
)
def test_results_are_for_people_in_a_terminal_without_json(monkeypatch, flags, is_tty, expected):
    monkeypatch.setattr("sys.stdout", SimpleNamespace(isatty=lambda: is_tty))
    options = BulkOptions.taken_from(encode_module.encode.make_context("encode", ["m", *flags]).params)
    assert (options.is_in_terminal, options.is_for_people) == expected


def test_standard_output_that_cannot_be_written_is_one_line(monkeypatch):
    with open("/dev/full", "wb") as full:
        monkeypatch.setattr("sys.stdout", SimpleNamespace(buffer=full, isatty=lambda: False))
        with pytest.raises(SIEError, match=r"standard output: cannot be written \(No space left on device\)"):
            write_out(b"x")
        with pytest.raises(OSError, match="No space"):
            full.close()
