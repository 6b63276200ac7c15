"""The table of what SIE's documentation says: a test or a reason for each statement; SIE's defaults are accepted."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from sie_triton.settings import Settings, read_settings
from sie_triton.settings.sources import NOT_READ, why_not_read

ROOT = Path(__file__).parents[3]
PAGE = Path(__file__).with_name("sie_documentation.md")
NUM_STATEMENTS = {"Performance tuning": 44, "Request lifecycle": 36, "Configuration": 79, "Engine overview": 31}

TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LINK = re.compile(r"\]\([\w./-]+\.md(#[\w-]+)?\)")
# SIE's default stands behind the variable, without a code font.
VARIABLE = re.compile(r"`(SIE_\w+)(?:…)?`(?: (\S+))?")

# Fewer characters say no reason.
MIN_REASON = 8

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Statement(NamedTuple):
    """A row of the table: `verdict` is done or decided, `shown` what follows it."""

    page: str
    text: str
    verdict: str
    shown: str


def statements() -> list[Statement]:
    found, page = [], ""
    for line in PAGE.read_text().splitlines():
        page = line.removeprefix("## ") if line.startswith("## ") else page
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and cells[0] != "section":
            _, text, here = cells
            verdict, _, shown = here.partition(": ")
            found.append(Statement(page, text, verdict, shown))
    return found


STATEMENTS = statements()


@cache
def functions_in(path: str) -> set[str]:
    return {node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, DEFINITIONS)}


def test_every_statement_is_there():
    assert Counter(each.page for each in STATEMENTS) == NUM_STATEMENTS


def test_what_is_done_names_a_test_or_a_page_and_what_is_decided_a_reason():
    for each in STATEMENTS:
        if each.verdict == "done":
            assert TEST.search(each.shown) or LINK.search(each.shown), each
        else:
            assert each.verdict == "decided", each
            assert len(each.shown) >= MIN_REASON, each


def test_every_named_test_exists():
    named = [found for each in STATEMENTS for found in TEST.findall(each.shown)]
    assert len(named) > len(STATEMENTS) // 2
    assert [f"{path}::{name}" for path, name in named if name not in functions_in(path)] == []


def test_a_variable_is_a_setting_or_decided_by_the_reason_of_the_commands():
    rows = [(name, each) for each in STATEMENTS for name, _ in VARIABLE.findall(each.text)]
    settings = {f"SIE_{name.upper()}" for name in Settings.model_fields} | {"SIE_AUTH_TOKEN"}
    for name, each in rows:
        if name not in settings:
            assert each.verdict == "decided"
            assert why_not_read(name)
    assert NOT_READ.keys() <= {name for name, _ in rows}


@pytest.mark.parametrize(
    ("variable", "value"),
    sorted({found for each in STATEMENTS for found in VARIABLE.findall(each.text) if found[1]}),
)
def test_sies_default_is_accepted(tmp_path, monkeypatch, variable, value):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, value)
    name = variable.removeprefix("SIE_").lower()
    if name in Settings.model_fields:
        accepted = getattr(read_settings(), name)
        assert str(accepted).lower() in (value, f"{value}.0", value.removeprefix("./"))
