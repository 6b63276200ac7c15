"""What comes from outside is plain text in a terminal: no markup of Rich, no escape sequence."""

import ast
import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.live import Live
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from sie_triton.cli import cli
from sie_triton.cli.main import main
from sie_triton.cluster import commands
from sie_triton.system.printing import OBEYED, Console, echo, shown
from tests.conftest import model_file

ROOT = Path(__file__).parents[3] / "sie_triton"

# Programs that write what other programs read, and a script of the standard library.
NOT_FOR_PEOPLE = {
    "cli/bulk/records.py",
    "system/printing.py",
    "system/processes/fork_server.py",
    "pipeline/render/refresh.py",
    "server/preflight.py",
    "pipeline/stages/triton.py",
    "models/weights/unpickle.py",
}

HOSTILE = "[INST] [/red] :smile: \x1b[2J\x9bH\r\x07 \u202e\ud800 ü"

# Rich moves the cursor itself, too, but never as HOSTILE does.
FROM_OUTSIDE = re.compile("\x1b\\[2J|[\x9b\x07\u202e\ud800]")


def printers(tree: ast.AST) -> Iterator[str]:
    """Yield everything in a module that prints by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("rich"):
            yield from (each.name for each in node.names if each.name in ("Console", "print", "print_json", "inspect"))
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name == "print" or name.startswith(
                ("click.echo", "click.secho", "click.style", "sys.stdout.", "sys.stderr.")
            ):
                yield name
            is_plain = any(each.arg == "markup" for each in node.keywords)
            if name == "Text.from_markup" or (name.endswith("TextColumn") and not is_plain):
                yield name


def test_there_is_one_way_to_a_terminal():
    found = {
        str(path.relative_to(ROOT)): names
        for path in ROOT.rglob("*.py")
        if (names := [*printers(ast.parse(path.read_text()))]) and names != ["sys.stdout.isatty"]
    }
    assert found.keys() <= NOT_FOR_PEOPLE, found


def printed(show, **options) -> str:
    file = io.StringIO()
    show(Console(file=file, width=200, **options))
    return file.getvalue()


def in_table(console: Console) -> None:
    table = Table(title=HOSTILE, caption=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    table.add_row(Text(HOSTILE))
    console.print(table)


def live(console: Console) -> None:
    with Live(console=console, auto_refresh=False) as shown_now:
        shown_now.update(Text(HOSTILE), refresh=True)


def progress(console: Console) -> None:
    with Progress(TextColumn("{task.description}", markup=False), console=console) as bar:
        bar.add_task(HOSTILE)


def status(console: Console) -> None:
    with console.status(HOSTILE):
        pass


WAYS = [
    in_table,
    live,
    progress,
    status,
    lambda console: console.print(HOSTILE),
    lambda console: console.print_data(HOSTILE),
]


@pytest.mark.parametrize("show", WAYS)
def test_a_console_shows_markup_and_escapes_as_they_are(show):
    text = printed(show) or printed(show, force_terminal=True, no_color=True)
    assert "[INST] [/red] :smile: \\u001b" in text
    for mode in ({}, {"force_terminal": True}):
        assert not FROM_OUTSIDE.search(printed(show, **mode))


def test_data_stay_what_they_are():
    assert json.loads(printed(lambda console: console.print_data({HOSTILE: [HOSTILE]}))) == {HOSTILE: [HOSTILE]}


def test_texts_in_all_languages_are_not_changed():
    for text in ("Größe", "日本語\u3000東京", "नमस्ते", "👩‍👩‍👧", "می‌خواهم", "a\tb\nc", "\u00a0"):
        assert shown(text) == text


def test_echo(capsys):
    echo(HOSTILE)
    assert not OBEYED.search(capsys.readouterr().out)


@pytest.fixture
def hostile_file(tmp_path: Path) -> Path:
    (path := tmp_path / "model.yaml").write_text(
        model_file(
            "a/b",
            tmp_path,
            "sentence_transformer",
            {"encode": {"dense": {"dim": 8}}},
            runtime={"doc_template": "[INST] {text} [/INST]"},
        )
    )
    return path


def test_models_show_prints_a_template_with_brackets(hostile_file):
    done = CliRunner().invoke(cli, ["models", "show", str(hostile_file)])
    assert (done.exit_code, "[INST] {text} [/INST]" in done.output) == (0, True), done.output


@pytest.mark.parametrize("arguments", [["models", "check", "."], ["models", "show", "./[/x]"], ["--[/x]\x1b[2J"]])
def test_errors_are_plain_text(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": HOSTILE.replace("\ud800", "")}))
    monkeypatch.setattr(sys, "argv", ["sie-triton", *arguments])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr()
    assert not OBEYED.search(said.out + said.err)


def test_a_workers_name_in_the_table_of_a_cluster(monkeypatch):
    worker = {
        "name": HOSTILE,
        "pool": HOSTILE,
        "machine_profile": HOSTILE,
        "healthy": True,
        "queue_depth": 0,
        "refused_models": [HOSTILE],
        "config_epoch": 0,
        "loaded_models": [HOSTILE],
    }
    text = printed(lambda console: console.print(commands.table_of({"workers": [worker], "config_epoch": 0})))
    assert "[/red]" in text
    assert not OBEYED.search(text)


def test_results_in_a_terminal():
    """A program that reads them gets them as they are."""
    program = "from sie_triton.cli.bulk.records import to_json, write_out; write_out(to_json({'a': '\\x9b\\u202e'}))"
    here, there = pty.openpty()
    subprocess.run([sys.executable, "-c", program], stdout=there, check=True)
    os.close(there)
    assert json.loads(os.read(here, 1000)) == {"a": "\x9b\u202e"}
    os.close(here)
    assert (
        subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True).stdout
        == b'{"a":"\xc2\x9b\xe2\x80\xae"}\n'
    )
