"""Pages of docs/ that `python -m tools.pages` generates."""

import re

import pytest

from tools.pages import __main__ as pages
from tools.pages import client, parameters, settings


def test_a_page_that_differs_is_reported_and_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "PAGES", {"a.md": lambda: "# A\n", "b.md": lambda: "# B\n"})
    monkeypatch.setattr(pages.chart, "files", dict)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n")
    assert pages.main(["--check"]) == 1
    assert capsys.readouterr().err == "docs/b.md is out of date; run: python -m tools.pages\n"
    assert not (tmp_path / "docs" / "b.md").exists()
    assert pages.main([]) == 0
    assert (tmp_path / "docs" / "b.md").read_text() == "# B\n"
    assert pages.main(["--check"]) == 0


def test_a_setting_in_no_group_is_an_error(monkeypatch):
    monkeypatch.setattr(settings, "GROUPS", {"Addresses": "host"})
    with pytest.raises(ValueError, match="http_port"):
        settings.page()


def test_a_method_without_example_is_an_error(monkeypatch):
    monkeypatch.setattr(client, "EXAMPLE", "client.encode()")
    with pytest.raises(ValueError, match="SIEClient has the methods close, encode, "):
        client.page()


def test_an_argument_without_meaning_is_an_error(monkeypatch):
    monkeypatch.delitem(client.DOCS, "timeout")
    with pytest.raises(KeyError, match="timeout"):
        client.page()


def test_a_parameter_has_each_default_with_its_families():
    (row,) = (row for row in parameters.page().splitlines() if row.startswith("- `threshold` "))
    defaults = dict(re.findall(r"default ([\d.]+) \((.*?)\)", row))
    assert sorted(defaults) == ["0", "0.1", "0.25", "0.5"]
    assert "gliclass" in defaults["0"]
    assert "gliner2" in defaults["0.5"]
