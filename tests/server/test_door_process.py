"""The processes of the door: watched, killed, told to end, before a real server."""

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import aiohttp
import httpx
import pytest

from benchmarks.ports import free_ports
from sie_triton.system.processes.pids import parent_of
from tests.conftest import MINILM, TINY
from tests.server.conftest import opened
from tests.server.test_serve import sie


def pids_of(port: int) -> list[int]:
    """Process ids of this process's doors of that port."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"SIE_DOOR_PORT={port}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if parent_of(pid) == os.getpid()]


def test_two_processes_share_a_port_and_a_killed_one_is_replaced(server):
    port = free_ports(1)[0]
    with opened(server.settings, door_port=port, door_workers=2) as url:
        before = wait_for(lambda: len(found := pids_of(port)) == 2 and found)
        os.kill(before[0], signal.SIGKILL)
        wait_for(lambda: len(found := pids_of(port)) == 2 and before[0] not in found)
        for _ in range(8):  # new connections, to either of them
            wait_for(lambda: answers(f"{url}/readyz"))
    assert pids_of(port) == []


def test_requests_in_progress_are_answered_before_the_door_ends(server, http):
    port = free_ports(1)[0]
    assert http.post(f"/v1/encode/{MINILM}", json={"items": ["a"]}).status_code == 200
    body = {"items": [{"text": "one two three " * 90}] * 12}
    with opened(server.settings, door_port=port) as url:
        answers_before = []
        slow = threading.Thread(
            target=lambda: answers_before.append(httpx.post(f"{url}/v1/encode/{MINILM}", json=body, timeout=60))
        )
        slow.start()
        wait_for(lambda: server.status(MINILM)["num_open"])
    slow.join()
    assert answers_before[0].status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz")


def test_a_separate_door_serves_a_running_server(server, tmp_path):
    port = free_ports(1)[0]
    flags = [f"--grpc-port={server.settings.grpc_port}", f"--door-port={port}", f"--data-dir={tmp_path}"]
    process = sie("door", *flags)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "SIE door ready\n"
        assert httpx.post(f"http://127.0.0.1:{port}/v1/encode/{TINY}", json={"items": ["a"]}).status_code == 200
        second = sie("door", *flags)
        _, text = second.communicate(timeout=30)
        assert (second.returncode, "--door-port" in text) == (2, True)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/healthz")
    finally:
        process.kill()
        process.communicate()


def test_watchers_of_a_cluster_see_the_server_as_its_worker(door):
    async def watch():
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{door}/ws/cluster-status") as socket:
            return await socket.receive_json(timeout=5)

    told = asyncio.run(watch())
    assert (told["cluster"]["worker_count"], len(told["workers"])) == (1, 1)
    loaded = {model["name"] for model in told["models"] if model["worker_count"]}
    assert loaded == {*told["workers"][0]["loaded_models"]}


def test_watchers_get_the_status_periodically(door):
    async def watch():
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{door}/ws/status") as socket:
            told = [await socket.receive_json(timeout=60) for _ in range(3)]
            await socket.send_str("nobody reads this")
            await socket.ping(b"there?")
            told.append(await socket.receive_json(timeout=60))
            await socket.close()
            return told, socket.close_code

    told, code = asyncio.run(watch())
    assert [each["ready"] for each in told] == [True] * 4
    first, second, third = (each["timestamp"] for each in told[:3])
    assert first < second < third
    assert third - first > 0.35  # a period is 0.2 s
    assert code == 1000


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def answers(url):
    try:
        return httpx.get(url).status_code == 200
    except httpx.HTTPError:
        return False
