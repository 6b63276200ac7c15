"""`scripts/audit` reports vulnerabilities, foreign licences and wrong versions; a local service answers as OSV."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from threading import Event, Thread
from types import ModuleType

import pytest

pytest.importorskip("pip_audit", reason="scripts/audit needs pip-audit to ask for advisories")

SCRIPT = Path(__file__).parents[3] / "scripts" / "audit"
AFFECTED = {"jinja2": "CVE-2099-1"}  # in every version
ENTRY = '[CVE-2099-1]\nreason = "an example"\nuntil = {}\n'


class Service(BaseHTTPRequestHandler):
    """Answers as OSV does: an empty object, or advisories."""

    protocol_version = "HTTP/1.1"
    asked: dict[str, str]
    wait: Event

    def do_POST(self) -> None:
        query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = query["package"]["name"]
        self.asked[name] = query["version"]
        self.wait.wait()
        body = json.dumps({"vulns": [advisory(name)]} if name in AFFECTED else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def advisory(name: str) -> dict:
    ranges = [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99"}]}]
    package = {"name": name, "ecosystem": "PyPI"}
    return {"id": "GHSA-x", "aliases": [AFFECTED[name]], "affected": [{"package": package, "ranges": ranges}]}


@pytest.fixture
def service() -> Iterator[type[Service]]:
    handler = type("Handler", (Service,), {"asked": {}, "wait": Event()})
    handler.wait.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.port = server.server_port
    Thread(target=server.serve_forever, daemon=True).start()
    yield handler
    handler.wait.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("audit", str(SCRIPT))
    module = module_from_spec(spec_from_loader("audit", loader))
    loader.exec_module(module)
    return module


@pytest.fixture
def accepted(tmp_path) -> Path:
    return tmp_path / "accepted.toml"


def audit(port: int, *options: object) -> tuple[int, str, str]:
    """Return the exit status and both outputs of the audit, which asks the service at `port`."""
    environment = os.environ | {"PIP_AUDIT_OSV_URL": f"http://127.0.0.1:{port}/", "no_proxy": "127.0.0.1"}
    command = [sys.executable, SCRIPT, *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=40, env=environment)
    return done.returncode, done.stdout, done.stderr


def test_an_advisory_of_an_installed_version_fails(service):
    line = "is affected by CVE-2099-1 GHSA-x, fixed in 99\n"
    status, _, errors = audit(service.port)
    assert (status, errors[:7], errors[-len(line) :], errors.count("\n")) == (1, "jinja2 ", line, 1)
    assert {"numpy", "pyarrow", "torch", "transformers"} <= service.asked.keys()
    assert "+" not in service.asked["torch"]


def test_an_accepted_advisory_does_not(service, accepted):
    accepted.write_text(ENTRY.format("2099-12-31"))
    status, output, errors = audit(service.port, "--accepted", accepted)
    assert (status, errors) == (0, "")
    assert output.startswith("versions, licences and known vulnerabilities of ")


def test_an_advisory_is_accepted_until_a_date(script, accepted):
    accepted.write_text(ENTRY.format("2020-01-01") + ENTRY.format("2099-12-31").replace("2099-1]", "2099-2]"))
    assert script.accepted_advisories(accepted) == ["CVE-2099-2"]


@pytest.mark.parametrize("entry", ["[X]\nuntil = 2099-12-31\n", '[X]\nreason = "none"\n', ENTRY.format('"soon"')])
def test_an_accepted_advisory_has_a_reason_and_a_date(script, accepted, entry):
    accepted.write_text(entry)
    with pytest.raises(SystemExit, match="needs a reason, and a date as in until = 2"):
        script.accepted_advisories(accepted)


def test_the_repositorys_own_list_can_be_read(script):
    script.accepted_advisories(script.ACCEPTED)


def test_without_the_service_one_line_says_so():
    status, output, errors = audit(1)
    skipped, checked = output.splitlines()
    assert (status, errors) == (0, "")
    assert skipped.startswith("known vulnerabilities are not checked: http://127.0.0.1:1/: Connection refused")
    assert checked.startswith("versions and licences of ")


def test_a_slow_service_is_not_waited_for(service):
    service.wait.clear()
    begin = time.monotonic()
    status, output, _ = audit(service.port, "--limit", 3)
    assert (status, "out of time" in output) == (0, True)
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize(
    ("headers", "parts"),
    [
        ([("License-Expression", "MPL-2.0 AND (Apache-2.0 OR MIT)")], {"MPL-2.0", "Apache-2.0", "MIT"}),
        ([("License", "text"), ("Classifier", "License :: OSI Approved :: BSD License")], {"BSD License"}),
        ([("License", "BSD-3-Clause, other licenses\nfurther text")], {"BSD-3-Clause", "other licenses"}),
        ([("Classifier", "Topic :: Software")], {"none declared"}),
    ],
)
def test_licences_are_read_as_packages_declare_them(script, headers, parts):
    package = Message()
    for name, value in headers:
        package[name] = value
    assert set(script.licences_of(package)) == parts


@pytest.fixture
def foreign(tmp_path, monkeypatch) -> str:
    """A package with a licence that is not listed, and with a requirement that is not met."""
    directory = tmp_path / "foreign-1.dist-info"
    directory.mkdir()
    fields = "Name: foreign", "Version: 1", "License-Expression: GPL-3.0-only", "Requires-Dist: numpy>=99"
    (directory / "METADATA").write_text("\n".join(fields))
    monkeypatch.syspath_prepend(tmp_path)
    return "foreign"


def test_a_foreign_licence_and_a_wrong_version_are_reported(script, foreign):
    (licence,) = script.foreign_licences([foreign])
    assert licence == "foreign has a licence that scripts/audit does not list: GPL-3.0-only"
    versions, (conflict,) = script.installed(foreign, ())
    assert conflict == f"foreign requires numpy>=99, but {versions['numpy']} is installed"
