"""Settings whose effect a running server shows."""

import asyncio
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp
import httpx

from tests.server.test_serve import descendants, sie
from tests.support.controller import wait_for
from tests.support.counted_server import ADMIN_TOKEN, ENCODER, OUTSIDE, TOKEN


def test_the_gpu_type_and_the_bundle_are_reported(served):
    health = served.http.get("/health").json()
    assert (health["workers"][0]["gpu"], health["live_gpu_types"]) == ("l4", ["l4"])
    assert (health["workers"][0]["gpu_count"], health["cluster"]["gpu_count"]) == (2, 2)

    async def watch() -> Any:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        url = served.http.base_url.join("/ws/status")
        async with aiohttp.ClientSession(headers=headers) as session, session.ws_connect(f"{url}") as socket:
            return await socket.receive_json(timeout=20)

    told = asyncio.run(watch())
    assert (told["machine_profile"], told["bundle"]) == ("l4", "nightly")


def test_passes_are_written_down_and_shown(served):
    served.encode("load")
    command = [sys.executable, "-m", "sie_triton.cli", "top", "--once", "--seconds=2", f"--data-dir={served.data_dir}"]
    with ThreadPoolExecutor(1) as pool:
        table = pool.submit(subprocess.run, command, capture_output=True, text=True)
        while not table.done():
            served.encode("Roses climb the wall.")
    shown = table.result()
    assert shown.returncode == 0, shown.stderr
    (row,) = [line.split("│")[1:-1] for line in shown.stdout.splitlines() if ENCODER in line]
    assert [float(row[column]) for column in (3, 4)] == [1, 1]  # items and requests of a pass
    assert float(row[1]) > 0


def test_token_auth_exposes_only_the_door_and_hides_secrets(served):
    line = command_of(served.pid)
    assert line[line.index(b"--admin-token") + 1] == b"*" * len(ADMIN_TOKEN)
    assert b"--auth-tokens=" + b"*" * len(TOKEN) in line
    for each in descendants(served.pid):
        assert not {ADMIN_TOKEN.encode(), TOKEN.encode()} & set(command_of(each))
    assert [is_open(OUTSIDE, port) for port in served.ports] == [False] * 4 + [True]
    assert [is_open("127.0.0.1", port) for port in served.ports] == [True] * 4 + [False]
    door, control = f"http://{OUTSIDE}:{served.ports[4]}", served.ports[3]
    assert httpx.post(f"{door}/v1/encode/{ENCODER}", json={"items": ["a"]}).status_code == 401
    served.encode("a")
    # The door asks the controller, which asks for a token.
    wait_for(lambda: "loaded" in {each["state"] for each in served.http.get("/v1/models").json()["models"]})
    assert httpx.get(f"http://127.0.0.1:{control}/v1/models").status_code == 401
    assert re.search(rf"{ENCODER} .* loaded ", said("status", f"--url={door}", f"--auth-tokens={TOKEN}"))
    refused = said("encode", ENCODER, "a", f"--url={door}")
    assert "this is SIE's HTTP door, not Triton; Triton can be reached on the server's machine" in refused
    flags = [f"--controller-port={control}", f"--data-dir={served.data_dir}", f"--admin-token={ADMIN_TOKEN}"]
    assert '"resident"' in said("status", "--json", *flags)


def command_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def said(*arguments: str) -> str:
    return "".join(sie(*arguments).communicate(timeout=30))


def is_open(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
