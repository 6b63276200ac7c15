"""Output of `sie-triton status` in a terminal, and its picture in docs."""

import html
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from sie_triton.controller import commands
from sie_triton.controller.commands import PICTURE_COLUMNS
from sie_triton.controller.repository import unserved
from sie_triton.controller.status_table import faults, table_of
from sie_triton.settings import read_settings

PICTURE = Path(__file__).parents[3] / "docs" / "status.svg"
GIB = 2**30
PROBLEMS = {"/m/c.yaml": "/m/c.yaml: not valid", "/m/a.yaml": "/m/a.yaml: dim: no", "my__d": "Triton: no"}
LONG = "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2"
MEMORY = {"used_bytes": GIB, "limit_bytes": 2 * GIB, "source": "SIE_MEMORY_LIMIT_BYTES"}


def model(name, state="cold", **more):
    usual = {"failure": None, "engine": None, "graph_tokens": 0, "memory_bytes": 0, "idle_s": None, "pending": 0}
    return {"model": name, "state": state, **usual, "num_loras": 0, **more}


def resident(name, **more):
    return model(name, "resident", engine="torch", memory_bytes=GIB // 4, idle_s=3.0, **more)


def answer_of(*models, problems=None):
    return {"models": list(models), "memory": MEMORY, "problems": problems or {}}


def shown(*models, width=80):
    console = Console(width=width, record=True, file=io.StringIO())
    answer = answer_of(*models)
    console.print(table_of(answer, console.width))
    return [line.rstrip() for line in console.export_text().splitlines()]


def headers(lines):
    return [cell.strip() for line in lines if line.startswith("┃") for cell in line.strip("┃ ").split("┃")]


@pytest.mark.parametrize("width", [75, 80, 100, 160])
def test_no_name_is_broken_and_no_line_is_longer_than_the_terminal(width):
    lines = shown(resident(LONG, pending=2), resident("my/dense"), width=width)
    assert any(LONG in line for line in lines)
    assert all(len(line) <= width for line in lines)


def test_a_column_without_a_value_is_left_out():
    assert headers(shown(model("my/a"), width=200)) == ["model", "state", "last used"]
    full = resident("my/a", pending=1, num_loras=2)
    assert headers(shown(full, width=200)) == [
        *("model", "state", "engine", "memory", "last used", "in progress", "loras", "share"),
    ]


def test_several_gpus_have_a_column_and_a_line_each():
    devices = [{"device": f"cuda:{n}", **MEMORY, "used_bytes": n * GIB, "source": f"GPU {n}"} for n in range(2)]
    console = Console(width=200, record=True, file=io.StringIO())
    answer = answer_of(resident("my/a", device="cuda:1"), model("my/b", device=None))
    answer["memory"] = MEMORY | {"devices": devices}
    console.print(table_of(answer, 200))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert headers(lines)[:5] == ["model", "state", "engine", "device", "memory"]
    assert re.search(r"│ my/a +│ resident +│ torch +│ cuda:1 +│", "\n".join(lines))
    assert lines[-2:] == [
        "cuda:0: 0.00 GiB of 2.00 GiB used (0%, GPU 0)",
        "cuda:1: 1.00 GiB of 2.00 GiB used (50%, GPU 1)",
    ]
    answer["memory"]["devices"] = devices[1:]
    console.print(table_of(answer, 200))
    assert "device" not in headers(console.export_text().splitlines())


def test_a_narrow_table_drops_the_least_needed_columns():
    assert headers(shown(resident("my/a", pending=1), width=60)) == ["model", "state", "engine", "memory", "last used"]
    assert headers(shown(resident(LONG), width=80)) == ["model", "state"]


def test_each_failed_model_and_each_wrong_file_has_a_line_of_its_own():
    failed = model("my/a", "failed", failure="not found", source="/m/a.yaml")
    failed["failure_message"] = "weights: /nowhere is not a directory"
    answer = answer_of(failed, model("my/b", "failed", failure="network"), problems=PROBLEMS)
    assert list(faults(answer)) == [
        "my/a: not found: weights: /nowhere is not a directory",
        "my/b: network",
        "not served: /m/c.yaml: not valid",
        "not changed: /m/a.yaml: dim: no",
        "not served: my__d: Triton: no",
    ]
    lines = shown(failed)
    assert re.search(r"│ my/a +│ failed +│", "\n".join(lines))
    assert "1.00 GiB of 2.00 GiB used (50%, SIE_MEMORY_LIMIT_BYTES)" in lines


def test_a_line_below_the_table_is_not_cut_or_broken(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    problem = f"/m/c.yaml: {'x' * 200} [red]"
    monkeypatch.setattr(commands, "ask", lambda *_: answer_of(model("my/a"), problems={"/m/c.yaml": problem}))
    commands.show(read_settings())
    assert capsys.readouterr().out.splitlines()[-1] == f"not served: {problem}"


def test_a_name_is_text_and_no_markup():
    assert any("my/[red]a" in line for line in shown(model("my/[red]a")))


def test_the_picture_of_the_readme_is_what_the_command_shows():
    """`sie-triton status --svg docs/status.svg` writes the picture."""
    drawn = html.unescape(PICTURE.read_text()).replace("\xa0", " ")
    texts = [text.strip() for text in re.findall(">([^<]*)</text>", drawn)]
    cold = [model(f"acme/{name}", idle_s=idle) for name, idle in (("contracts", 24), ("products-en", 19))]
    lines = shown(resident("acme/mail-search"), *cold, width=PICTURE_COLUMNS)
    assert "SIE on Triton" in texts
    for cell in headers(lines):
        assert cell in texts
    assert "in progress" not in texts


def test_clients_get_the_reason_why_a_model_is_not_served(tmp_path):
    path = tmp_path / "dense.yaml"
    path.write_text("# mine\nsie_id: my/dense\ntasks: [")
    problem = f"{path}: not valid YAML: while parsing, see {tmp_path}/other and /srv/x/y.yaml\n{path}: more"
    assert unserved({str(path): problem, "my__b": "Triton: no", "/gone/my__c.yaml": "/gone/my__c.yaml: x"}) == {
        "my/dense": "dense.yaml: not valid YAML: while parsing, see other and y.yaml",
        "my/b": "Triton: no",
        "my/c": "my__c.yaml: x",
    }
