"""A config service that is killed at any moment leaves no change half done, and its client may send it again."""

import asyncio
import os
import subprocess
import sys
from contextlib import contextmanager, suppress

import httpx
import pytest

from benchmarks.ports import free_ports
from sie_triton.cluster import subjects
from sie_triton.cluster.model_files import reader
from sie_triton.cluster.permissions import CONFIG
from sie_triton.server.companions import resolved
from sie_triton.settings import Settings
from tests.process.cluster.conftest import in_cluster, model_file, until

NUM_CHANGES = 16

# Changes between two kills.
EVERY = 8


@contextmanager
def running(settings: Settings):
    process = subprocess.Popen(
        [sys.executable, "-m", "sie_triton.cluster.config.run"], env={**os.environ, **resolved(settings)}
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def ready(client: httpx.AsyncClient) -> None:
    while True:
        with suppress(httpx.HTTPError):
            if (await client.get("/readyz")).status_code == 200:
                return
        await asyncio.sleep(0.05)


async def changed(client: httpx.AsyncClient, number: int) -> int:
    """Send a change until it is confirmed, as a client does; return its epoch."""
    text, headers = model_file(f"t/m{number % 3}", f"/models/{number}"), {"Idempotency-Key": str(number)}
    while True:
        with suppress(httpx.HTTPError):
            answer = await client.post("/v1/configs/models", content=text, headers=headers)
            if answer.status_code < 300:
                return answer.json()["epoch"]
        await asyncio.sleep(0.01)


@pytest.mark.timeout(180)
@in_cluster()
async def test_a_config_service_that_is_killed_makes_each_change_once(cluster):
    (port,) = free_ports(1)
    settings = cluster.server.user(cluster.settings(admin_token="admin", config_port=port), CONFIG)
    headers = {"Authorization": "Bearer admin"}
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=10) as client:
        epochs: dict[int, int] = {}

        async def change(first: int, last: int) -> None:
            for number in range(first, last):
                epochs[number] = await changed(client, number)

        for first in range(0, NUM_CHANGES, EVERY):
            with running(settings) as process:
                await ready(client)
                changing = asyncio.create_task(change(first, first + EVERY))
                await until(lambda first=first: first + EVERY // 2 in epochs)
                process.kill()  # while the next change is on its way
            with running(settings):
                await changing
    bucket = await (await cluster.operator()).key_value(subjects.MODEL_FILES)
    read = reader(["sie-config"])
    written = [read(each.value) for name in range(3) for each in await bucket.history(f"=.t__m{name}")]
    assert sorted(int(each.version.request) for each in written) == list(range(NUM_CHANGES))
    assert [epochs[number] for number in range(NUM_CHANGES)] == list(range(1, NUM_CHANGES + 1))
