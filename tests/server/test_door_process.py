"""The processes of the door: watched, killed, told to end, before a real server."""

import asyncio
import os
import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import aiohttp
import httpx
import pytest

from benchmarks.ports import free_ports
from sie_triton.pipeline.render.build import write_repository
from sie_triton.server.launch import Server
from sie_triton.system.processes.pids import parent_of
from tests.conftest import MINILM, TINY, fresh_settings, tiny_model_file
from tests.pure.doors.test_doors_fuzz import requests_of
from tests.server.conftest import opened
from tests.server.test_serve import descendants, serving, sie


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


@pytest.mark.slow
def test_the_door_survives_a_tritonserver_crash(tmp_path):
    with serving(tmp_path, num_ports=5) as (process, _):
        names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(process.pid)}
        (triton,) = [pid for pid, name in names.items() if name.startswith(b"/") and b"--grpc-port" in name]
        (door,) = [pid for pid, name in names.items() if b"sie_triton.doors" in name]
        environment = Path(f"/proc/{door}/environ").read_bytes().split(b"\0")
        (port,) = [int(each.partition(b"=")[2]) for each in environment if each.startswith(b"SIE_DOOR_PORT=")]
        url, told = f"http://127.0.0.1:{port}/v1/encode/{MINILM}", []
        assert httpx.post(url, json={"items": ["a"]}, timeout=60).status_code == 200
        os.kill(triton, signal.SIGKILL)
        while not told or told[-1].status_code != 200:
            told.append(httpx.post(url, json={"items": ["a"]}, timeout=60))
            time.sleep(0.1)
        refused = told[:-1]
        assert refused
        assert {answer.status_code for answer in refused} == {503}
        assert {"QUEUE_UNAVAILABLE"} <= {answer.json()["detail"]["code"] for answer in refused}
        assert all(int(answer.headers["Retry-After"]) for answer in refused)
        assert door in descendants(process.pid)


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
            began = time.monotonic()
            told = [await socket.receive_json(timeout=5) for _ in range(3)]
            lasted = time.monotonic() - began
            await socket.send_str("nobody reads this")
            await socket.ping(b"there?")
            told.append(await socket.receive_json(timeout=5))
            await socket.close()
            return told, lasted, socket.close_code

    told, lasted, code = asyncio.run(watch())
    assert [each["ready"] for each in told] == [True] * 4
    assert told[0]["timestamp"] < told[1]["timestamp"] < told[2]["timestamp"]
    assert 0.35 < lasted < 2
    assert code == 1000


def test_requests_of_any_bytes_do_no_harm(door):
    knock(door, 300)


@pytest.mark.slow
def test_many_requests_of_any_bytes_do_no_harm(door):
    knock(door, 10_000)


@pytest.mark.slow
def test_a_minute_of_overload_is_refused_quickly(tmp_path, tiny_directory):
    """40 clients send as fast as they can to a model that takes 8 requests at once."""
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.yaml").write_text(tiny_model_file(TINY, tiny_directory))
    settings = fresh_settings(tmp_path, models_dir=tmp_path / "models", max_concurrent_requests=8)
    write_repository(tmp_path / "repository", settings, [TINY], runtime=settings.runtime)
    with Server(settings, tmp_path / "repository") as running, opened(settings) as url:
        running.wait_ready()
        with httpx.Client(base_url=url, timeout=60) as http:
            assert http.post(f"/v1/encode/{TINY}", json={"items": ["a"]}).status_code == 200
        until = time.monotonic() + 60
        with ThreadPoolExecutor(40) as pool:
            told = [each for of_client in pool.map(lambda _: overload(url, until), range(40)) for each in of_client]
        with httpx.Client(base_url=url, timeout=60) as http:
            assert http.get("/readyz").text == "ok"
            assert http.post(f"/v1/encode/{TINY}", json={"items": ["a"]}).status_code == 200
    refused = [seconds for status, seconds in told if status == 503]
    done = [seconds for status, seconds in told if status == 200]
    print(len(done), "answered,", len(refused), "refused, slowest", max(done), max(refused))
    assert len(done) + len(refused) == len(told)
    assert len(refused) > 100
    assert len(done) > 1000
    assert sorted(refused)[len(refused) // 2] < 1


def overload(url: str, until: float) -> list[tuple[int, float]]:
    """Return status and seconds of each response."""
    found = []
    with httpx.Client(base_url=url, timeout=60) as http:
        while time.monotonic() < until:
            asked = time.monotonic()
            answer = http.post(f"/v1/encode/{TINY}", json={"items": ["one two three"]})
            if answer.status_code == 503:
                assert answer.json()["detail"]["code"] == "QUEUE_FULL"
                assert answer.headers["Retry-After"] == "1"
            found.append((answer.status_code, time.monotonic() - asked))
    return found


def knock(door: str, number: int) -> None:
    """Check that the door answers every request, and is healthy after all of them."""
    host, port = door.removeprefix("http://").split(":")
    rng = random.Random(20)
    with httpx.Client(base_url=door, timeout=60) as http:
        for method, path, headers, body in requests_of(rng, number, TINY):
            answer = http.request(method, path, headers=headers, content=body)
            assert answer.status_code < 500, (path, body[:200], answer.text)
            assert "Traceback" not in answer.text
            if answer.status_code >= 400 and method != "HEAD":
                assert {"code", "message"} <= answer.json()["detail"].keys()
        for _ in range(number // 10):
            with socket.create_connection((host, int(port)), 5) as raw:
                raw.sendall(rng.randbytes(rng.randrange(1, 400)))
        assert http.get("/readyz").text == "ok"
        assert http.post(f"/v1/encode/{TINY}", json={"items": ["a"]}).status_code == 200


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def answers(url):
    try:
        return httpx.get(url).status_code == 200
    except httpx.HTTPError:
        return False
