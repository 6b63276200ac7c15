"""Reader of hand-written YAML (model files and the settings file): stricter than PyYAML, and bounded."""

import pytest
import yaml

from sie_triton.errors import CatalogError, SettingsError
from sie_triton.models.catalog import load_file
from sie_triton.settings import read_settings
from sie_triton.settings.yaml_reader import MAX_CHARACTERS, MAX_DEPTH, MAX_NODES, read_yaml
from tests.conftest import tiny_model_file

BILLION_LAUGHS = "a0: &a0 x\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\nb: [1, {c: 2}, x]\n",
        "a: &a {b: 1, c: 2}\nd: {<<: *a, c: 3}\ne: [*a, *a]\n",
        "- a\n- {1: x, '1': y}\n",
        "[" * (MAX_DEPTH - 1) + "]" * (MAX_DEPTH - 1),
        "",
    ],
)
def test_values_are_those_of_the_safe_loader(text):
    assert read_yaml(text) == yaml.safe_load(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", r"line 3, column \d+: a occurs twice, first in line 1; keep one of them"),
        ("a:\n  b: {c: 1, c: 2}\n", r"line 2, column \d+: c occurs twice, first in line 2"),
        ("- &k a\n- {*k : 1, *k : 2}\n", "a occurs twice"),
        (
            "[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH,
            rf"line 1, column \d+: nested too deeply; at most {MAX_DEPTH} levels",
        ),
        (BILLION_LAUGHS, rf"line 6, column \d+: holds more than {MAX_NODES} values; each use of an alias counts"),
        (
            "\n".join(["- x"] * (MAX_NODES + 1)),
            rf"line {MAX_NODES + 1}, column \d+: holds more than {MAX_NODES} values",
        ),
        ("a: &a [1, *a]", r"line 1, column \d+: the alias [*]a is part of its own target"),
        ("a: 1\nb: !!timestamp x\n", r"line 2, column \d+: the value does not fit its tag !!timestamp"),
        ('a: 1\nb: {"\\ud800": 1}\n', r"line 2, column \d+: the text contains a lone surrogate"),
        ("a: !!bool x\n", r"line 1, column \d+: the value does not fit its tag !!bool"),
        ("a: !!int ''\n", r"line 1, column \d+: the value does not fit its tag !!int"),
        ("#" * (MAX_CHARACTERS + 1), f"longer than {MAX_CHARACTERS} characters"),
    ],
)
def test_ambiguous_or_too_large_yaml_is_refused_with_its_line(text, problem):
    with pytest.raises(yaml.YAMLError, match=problem):
        read_yaml(text)


def test_a_key_that_occurs_twice_in_a_model_file_is_named(tmp_path, tiny_directory):
    path = tmp_path / "model.yaml"
    path.write_text(tiny_model_file("my/tiny", tiny_directory) + "\ntasks: {score: {}}\n")
    with pytest.raises(CatalogError, match=f"^{path}: not valid YAML: line .*: tasks occurs twice, first in line"):
        load_file(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (
            b"http_port: 1\nhost: localhost\nhttp_port: 2\n",
            r"line 3, column \d+: http_port occurs twice, first in line 1",
        ),
        (b"http_port: [", "not valid YAML: line 1, column 13: expected"),
        (b"\xff\xfe\xff", "not valid YAML: 'utf-8' codec can't decode"),
        (b"[http_port]", "must contain one setting per line"),
    ],
)
def test_an_error_in_the_settings_file_has_its_path(tmp_path, monkeypatch, content, problem):
    path = tmp_path / "my.yaml"
    path.write_bytes(content)
    monkeypatch.setenv("SIE_CONFIG", str(path))
    with pytest.raises(SettingsError, match=f"^{path}: .*{problem}"):
        read_settings()


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("host: [a, b}", 11),
        ('host: "\u6771\u4eac e\u0301" ]', 15),  # two letters of two columns, and an accent that takes none
        ("host: a\t]: b: c", 7),
        (f"host: {'a' * 500} ]: b: c", None),
    ],
)
def test_an_error_shows_the_line_with_a_caret_below_the_column(tmp_path, monkeypatch, line, at):
    (tmp_path / "my.yaml").write_text(f"door: true\n{line}\n")
    monkeypatch.setenv("SIE_CONFIG", str(tmp_path / "my.yaml"))
    with pytest.raises(SettingsError) as caught:
        read_settings()
    _, shown, caret = str(caught.value).splitlines()
    assert (shown[:10], len(shown) <= 79) == (f"    {line[:6]}" if at else shown[:10], True)
    assert at is None or caret == f"    {' ' * at}^"


def test_an_error_in_the_line_of_a_secret_does_not_show_it(tmp_path, monkeypatch):
    (tmp_path / "my.yaml").write_text("admin_token: [hidden}\n")
    monkeypatch.setenv("SIE_CONFIG", str(tmp_path / "my.yaml"))
    with pytest.raises(SettingsError) as caught:
        read_settings()
    assert "hidden" not in str(caught.value)


def test_an_empty_settings_file_sets_nothing(tmp_path, monkeypatch):
    (tmp_path / "empty.yaml").touch()
    monkeypatch.setenv("SIE_CONFIG", str(tmp_path / "empty.yaml"))
    assert read_settings().http_port == 8000
