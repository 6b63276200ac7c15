"""docs/migrating-from-sie.md: a test for each statement of SIE's documentation; SIE's defaults are accepted."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from sie_triton.settings import Settings, read_settings
from sie_triton.settings.sources import NOT_READ, why_not_read

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/migrating-from-sie.md").read_text()

TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
# SIE's default stands behind the variable, without a code font.
VARIABLE = re.compile(r"`(SIE_\w+)`(?: ([^\s,:|]+))?")

# Statements and their tests: rows of the last table.
STATEMENTS = dict(re.findall(r"^\| (.+?) \| (`tests/.+) \|$", PAGE, re.MULTILINE))
NUM_STATEMENTS, NUM_VARIABLES = 39, 49


def variables() -> set[tuple[str, str]]:
    """Return each variable of the statements with SIE's default, empty if it has none."""
    return {found for statement in STATEMENTS for found in VARIABLE.findall(statement)}


@cache
def functions_in(path: str) -> set[str]:
    return {node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_statement_and_variable_is_there():
    assert (len(STATEMENTS), len(variables())) == (NUM_STATEMENTS, NUM_VARIABLES)


def test_every_named_test_exists():
    named = [found for shown in STATEMENTS.values() for found in TEST.findall(shown)]
    assert len(named) > len(STATEMENTS)
    assert [f"{path}::{name}" for path, name in named if name not in functions_in(path)] == []


def test_a_variable_is_a_setting_or_has_the_reason_of_the_commands():
    named = set(re.findall(r"`(SIE_\w+)", PAGE))
    settings = {f"SIE_{name.upper()}" for name in Settings.model_fields} | {"SIE_AUTH_TOKEN"}
    assert [name for name in named - settings if not why_not_read(name)] == []
    assert NOT_READ.keys() <= named
    assert {name for name, _ in variables()} <= settings


@pytest.mark.parametrize(("variable", "value"), sorted(each for each in variables() if each[1]))
def test_sies_default_is_accepted(tmp_path, monkeypatch, variable, value):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, value)
    accepted = getattr(read_settings(), variable.removeprefix("SIE_").lower())
    assert str(accepted).lower() in (value, f"{value}.0", value.removeprefix("./"))
