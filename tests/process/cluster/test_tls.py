"""The queue over TLS: with the authority's certificate it works, without it nothing is sent."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest

from sie_triton.cluster.connection import connect
from sie_triton.cluster.permissions import GATEWAY
from sie_triton.settings import Settings, read_settings
from tests.process.cluster.conftest import asked, clustered, served
from tests.support.nats import NatsServer

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

ADDRESS = "/CN=127.0.0.1"


def made_certificate(directory: Path) -> tuple[Path, Path]:
    """Return a certificate for the loopback address, signed by itself, and its key."""
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", ADDRESS]
    subprocess.run([*command, "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return certificate, key


class TlsServer(NatsServer):
    """nats-server that refuses connections without TLS."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.authority, key = made_certificate(directory)
        with self._config.open("a") as config:
            config.write(f'tls {{ cert_file: "{self.authority}", key_file: "{key}" }}\n')

    def user(self, settings: Settings, name: str) -> Settings:
        return super().user(settings, name).model_copy(update={"nats_tls_ca": self.authority})


@pytest.fixture
def tls_server(tmp_path: Path):
    with TlsServer(tmp_path) as server:
        yield server


def test_requests_are_answered_over_tls(tls_server, tmp_path):
    async def test() -> None:
        async with clustered(tls_server, tmp_path) as cluster:
            queue, _ = await cluster.gateway(), await cluster.worker("w")
            await served(queue)
            assert await asked(queue, "a") == "a"

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_server_of_another_authority_gets_no_password(tls_server, tmp_path):
    (tmp_path / "other").mkdir()
    other, _ = made_certificate(tmp_path / "other")
    settings = tls_server.user(read_settings(data_dir=tmp_path), GATEWAY).model_copy(update={"nats_tls_ca": other})
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(connect(settings, GATEWAY, "x"), 2))
    log = (tmp_path / "nats.log").read_text()
    assert "bad certificate" in log or "unknown certificate" in log or "TLS handshake error" in log
