"""A queue whose disk was full takes requests again once there is space, with the real nats-server on a small disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

# Runs on the small disk, which is its argument.
SCRIPT = """
import asyncio, sys
from pathlib import Path
from sie_triton.cluster.config.run import ConfigService
from sie_triton.cluster.connection import await_streams, connect
from sie_triton.cluster.permissions import CONFIG, GATEWAY
from sie_triton.cluster.subjects import work
from sie_triton.cluster.up import as_user, free_ports, nats, passwords
from sie_triton.system.processes.log import Log
from sie_triton.settings import Settings

async def put(js, size):
    try:
        return (await js.publish(work("default", "m"), bytes(size), timeout=2)).seq
    except Exception as exc:
        return type(exc).__name__

async def main(disk, port, users):
    settings = Settings(nats_url=f"nats://127.0.0.1:{port}", queue_max_bytes=20_000_000)
    client = await connect(as_user(settings, GATEWAY, users), GATEWAY, "test")
    js = client.jetstream()
    async with ConfigService(as_user(settings, CONFIG, users)):
        await await_streams(client, js, "default")
    print("before", await put(js, 1000))
    with (disk / "filler").open("wb") as file:
        try:
            while file.write(bytes(2**20)):
                file.flush()
        except OSError:
            pass
    print("full", await put(js, 1_000_000))
    (disk / "filler").unlink()
    for _ in range(20):
        if isinstance(found := await put(js, 1000), int):
            print("after", found)
            break
        await asyncio.sleep(0.2)

disk, users = Path(sys.argv[1]), passwords()
(port,) = free_ports(1)
with nats(disk / "nats", port, users, Log(disk / "nats.log"), lambda line: print(line)):
    asyncio.run(main(disk, port, users))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a small disk")
def test_a_queue_takes_requests_again_after_a_full_disk(tmp_path):
    mounted = f'mount --make-rprivate / && mount -t tmpfs -o size=150m,mode=700 tmpfs {tmp_path} && exec "$@"'
    python = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mounted, "sh", *python], cwd=ROOT, capture_output=True, text=True
    )
    assert "before 1\nfull TimeoutError\n" in done.stdout, done.stdout + done.stderr
    assert "nats-server ended by the launcher (a write failed, and there is space now)" in done.stdout
    assert "after 2\n" in done.stdout
