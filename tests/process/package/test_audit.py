"""`scripts/audit` reports vulnerabilities, foreign licences and wrong versions; a local service answers as OSV."""

import json
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.http_servers import Told, answering

pytest.importorskip("pip_audit", reason="scripts/audit needs pip-audit to ask for advisories")

SCRIPT = Path(__file__).parents[3] / "scripts" / "audit"
VERSIONS = {"jinja2": "3.1.0", "torch": "2.11.0+cpu"}
ADVISORIES = ("CVE-2099-1", "CVE-2099-2")  # of every version of jinja2
ENTRY = '[CVE-2099-1]\nreason = "an example"\nuntil = {}\n'


def advisory(alias: str) -> dict:
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99"}]}]
    package = {"name": "jinja2", "ecosystem": "PyPI"}
    return {"id": f"of-{alias}", "aliases": [alias], "affected": [{"package": package, "ranges": ranges}]}


@pytest.fixture
def asked(monkeypatch) -> Iterator[dict[str, str]]:
    """Run a service that answers as OSV does, with advisories for jinja2; yield the versions that it was asked for."""
    asked = {}

    def answer(request: BaseHTTPRequestHandler) -> Told:
        query = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        name = query["package"]["name"]
        asked[name] = query["version"]
        found = {"vulns": [*map(advisory, ADVISORIES)]} if name == "jinja2" else {}
        return 200, {}, json.dumps(found).encode()

    with answering(answer) as port:
        monkeypatch.setenv("PIP_AUDIT_OSV_URL", f"http://127.0.0.1:{port}/")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield asked


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("audit", str(SCRIPT))
    module = module_from_spec(spec_from_loader("audit", loader))
    loader.exec_module(module)
    return module


def test_an_advisory_of_an_installed_version_is_reported_unless_it_is_accepted_until_a_date(script, asked, tmp_path):
    accepted = tmp_path / "accepted.toml"
    accepted.write_text(ENTRY.format("2099-12-31") + ENTRY.format("2020-01-01").replace("2099-1]", "2099-2]"))
    (found,), reason = script.ask(VERSIONS, script.accepted_advisories(accepted), time.monotonic() + 60)
    assert ({*found.split()} & {"jinja2", "3.1.0", *ADVISORIES}, reason) == ({"jinja2", "3.1.0", "CVE-2099-2"}, "")
    assert asked == {"jinja2": "3.1.0", "torch": "2.11.0"}


def test_a_service_that_does_not_answer_is_told_apart_from_no_advisory(script, monkeypatch):
    monkeypatch.setenv("PIP_AUDIT_OSV_URL", "http://127.0.0.1:1/")
    found, reason = script.ask(VERSIONS, [], time.monotonic() + 60)
    assert (found, bool(reason)) == ([], True)


@pytest.fixture
def foreign(tmp_path, monkeypatch) -> str:
    """A package with a licence that is not listed beside one that is, and with a requirement that is not met."""
    directory = tmp_path / "foreign-1.dist-info"
    directory.mkdir()
    fields = "Name: foreign", "Version: 1", "License-Expression: MIT AND GPL-3.0-only", "Requires-Dist: numpy>=99"
    (directory / "METADATA").write_text("\n".join(fields))
    monkeypatch.syspath_prepend(tmp_path)
    return "foreign"


def test_a_foreign_licence_and_a_wrong_version_are_reported(script, foreign):
    (licence,) = script.foreign_licences([foreign])
    assert licence == "foreign has a licence that scripts/audit does not list: GPL-3.0-only"
    versions, (conflict,) = script.installed(foreign, ())
    assert conflict == f"foreign requires numpy>=99, but {versions['numpy']} is installed"
