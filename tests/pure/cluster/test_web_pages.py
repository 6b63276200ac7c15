"""Foreign web pages at the HTTP ports of a cluster; those of a gateway are a door's."""

from types import SimpleNamespace

import aiohttp
import pytest

from benchmarks.ports import free_ports
from sie_triton.cluster.config.api import application
from sie_triton.cluster.sidecar.run import probes
from sie_triton.settings import read_settings
from tests.support.http_clients import client_of
from tests.support.joiners import in_loop

FOREIGN = [{"Host": "rebound.example:8081"}, {"Origin": "https://evil.example"}, {"Origin": "http://localhost:3000"}]


@pytest.mark.parametrize(("headers", "status"), [({}, 200), *((headers, 403) for headers in FOREIGN)])
@in_loop
async def test_a_config_service_refuses_them(tmp_path, headers, status):
    app = application(SimpleNamespace(), SimpleNamespace(), read_settings(data_dir=tmp_path), "admin")
    async with client_of(app) as client:
        assert (await client.get("/healthz", headers=headers)).status == status
        refused = await client.post("/v1/configs/models", headers={"Authorization": "Bearer wrong", **headers})
        assert refused.status == (403 if headers else 401)


@pytest.mark.parametrize(("headers", "status"), [({}, 200), *((headers, 403) for headers in FOREIGN)])
@in_loop
async def test_a_sidecar_refuses_them(tmp_path, headers, status):
    settings = read_settings(data_dir=tmp_path, worker_metrics_port=free_ports(1)[0])

    async with probes(SimpleNamespace(is_alive=True), settings), aiohttp.ClientSession() as client:
        url = f"http://127.0.0.1:{settings.worker_metrics_port}/healthz"
        assert (await client.get(url, headers=headers)).status == status
