"""Tokens and TLS of both clients and of the command line, over HTTP and gRPC, at a fake of Triton behind a proxy."""

import json
import subprocess
import sys

import pytest

from sie_triton.cli.options import ADDRESS, address_of
from sie_triton.client.failures import Unauthorized
from sie_triton.client.known import ControllerAddress
from sie_triton.errors import InputError, Unreachable
from tests.support.clients import KINDS, MODEL, raises_exactly
from tests.support.doubles import FakeTriton
from tests.support.tls import certificate, tls_proxy


@pytest.fixture(params=["http", "grpc"])
def fake(request):
    with FakeTriton(request.param) as fake:
        fake.token = "secret"
        yield fake


@KINDS
def test_the_token_goes_with_each_request(kind, fake):
    with kind(fake.url, token="secret", controller_url="") as client:
        assert client.encode(MODEL, "a")["dense"].tolist() == [1]
    for token in ("", "wrong"):
        with kind(fake.url, token=token, controller_url="") as client:
            raises_exactly(lambda: client.encode(MODEL, "a"), Unauthorized, "token")


@KINDS
def test_the_server_is_reached_by_tls_with_certificates_of_ones_own(kind, fake, tmp_path):
    file = certificate(tmp_path)
    with tls_proxy(fake.port, file) as port:
        url = f"{fake.url.partition(':')[0]}s://127.0.0.1:{port}"
        with kind(url, token="secret", ca_file=str(file), controller_url="") as client:
            assert client.encode(MODEL, "a")["dense"].tolist() == [1]
        with kind(url, token="secret", controller_url="", retry=False) as client:
            raises_exactly(lambda: client.encode(MODEL, "a", timeout=5), Unreachable, "no server answers")


@KINDS
@pytest.mark.parametrize("token", ["a\nb", "é", 7])
def test_a_token_that_is_no_header_is_refused(kind, token):
    raises_exactly(lambda: kind("http://127.0.0.1:9", token=token), InputError, r"^token: ")


@KINDS
def test_a_file_without_certificates_is_named(kind, tmp_path):
    (tmp_path / "empty.pem").touch()
    for name in ("empty.pem", "missing.pem"):
        path = str(tmp_path / name)
        raises_exactly(lambda path=path: kind("https://127.0.0.1:9", ca_file=path), InputError, f"^ca_file: .*{name}")


@KINDS
@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "127.0.0.1:9"])
def test_certificates_without_tls_are_refused(kind, url, tmp_path):
    raises_exactly(lambda: kind(url, ca_file=str(certificate(tmp_path))), InputError, r"^ca_file: ")


@pytest.mark.parametrize(
    ("given", "token", "controller"),
    [
        ({}, "of-the-server", "127.0.0.1:9003"),
        ({"url": "http://elsewhere:8000"}, "", "elsewhere:8003"),
        ({"url": "http://elsewhere:8000", "auth_tokens": "mine"}, "mine", "elsewhere:8003"),
        ({"url": "http://elsewhere:8000", "controller_port": 9103}, "", "elsewhere:9103"),
    ],
)
def test_a_servers_tokens_and_its_controllers_port_are_for_no_other_url(monkeypatch, given, token, controller):
    monkeypatch.setenv("SIE_AUTH_TOKENS", "of-the-server,another")
    monkeypatch.setenv("SIE_CONTROLLER_PORT", "9003")
    address = address_of(**{**dict.fromkeys(ADDRESS), **given})
    asked = ControllerAddress.beside(address, None)
    assert (address.token, asked and asked.target) == (token, controller)


def test_a_command_sends_the_token_by_tls(fake, tmp_path):
    file = certificate(tmp_path)
    with tls_proxy(fake.port, file) as port:
        url = f"{fake.url.partition(':')[0]}s://127.0.0.1:{port}"
        command = [sys.executable, "-m", "sie_triton.cli", "encode", MODEL, "a", "--json", "--url", url]
        command += ["--ca-file", str(file), "--auth-tokens", "secret"]
        done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, json.loads(done.stdout)["dense"]) == (0, [1.0]), done.stderr
