"""The files of the status page, and the status as JSON: who gets which, and with which headers."""

import asyncio
import re
from time import monotonic

import httpx
import pytest

from sie_triton.doors.backend import States
from sie_triton.doors.limits import DoorLimits
from sie_triton.doors.status_page import FOLDER
from tests.support.doors import door_of, knock

CHROMIUM = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
FILES = sorted(path for path in FOLDER.iterdir() if path.name != "index.html")
TOKENS = {"auth_mode": "token", "auth_tokens": "secret"}


def get(path: str, accept: str | None = None, **settings: object) -> httpx.Response:
    headers = {} if accept is None else {"Accept": accept}
    return knock(door_of(**settings)[0], lambda client: client.get(path, headers=headers))


@pytest.mark.parametrize(
    ("accept", "is_page"),
    [
        (CHROMIUM, True),
        ("text/html", True),
        ("TEXT/HTML, */*", True),
        (None, False),
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/json, text/html", False),
        ("text/html;q=0", False),
        (",;,text/html", False),
    ],
)
def test_browsers_get_the_page_and_machines_json(accept, is_page):
    response = get("/", accept)
    assert response.status_code == 200
    assert response.headers["vary"] == "Accept"
    if is_page:
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert response.text == (FOLDER / "index.html").read_text()
    else:
        assert response.json()["name"] == "sie-triton"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_each_file_of_the_page_needs_no_token(path):
    response = get(f"/page/{path.name}", **TOKENS)
    assert response.content == path.read_bytes()
    kinds = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
    assert response.headers["content-type"] == kinds[path.suffix]


@pytest.mark.parametrize("path", ["/", "/page/page.js"])
def test_the_page_may_load_nothing_else_and_stand_in_no_frame(path):
    headers = get(path, CHROMIUM).headers
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    assert {kind for kind, sources in policy.items() if sources == "'self'"} == {
        "script-src",
        "style-src",
        "img-src",
        "connect-src",
    }
    others = {kind: sources for kind, sources in policy.items() if sources != "'self'"}
    assert others.pop("require-trusted-types-for") == "'script'"
    assert others == dict.fromkeys(("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'")
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["", "index.html", "../status_page.py", "%2e%2e/status_page.py", "none.js"])
def test_no_other_file_is_served(name):
    assert get(f"/page/{name}").status_code == 404


def test_every_file_is_used_and_every_address_is_this_servers():
    texts = {path.name: path.read_text() for path in FOLDER.iterdir()}
    named = {name for text in texts.values() for name in re.findall(r'(?:"\./|="page/)([\w.]+)"', text)}
    assert named == texts.keys() - {"index.html"}
    addresses = {url for text in texts.values() for url in re.findall(r"https?://[\w./]+", text)}
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nothing loads


def test_the_status_needs_the_token():
    assert get("/status", **TOKENS).status_code == 401
    door, _ = door_of(**TOKENS)
    response = knock(door, lambda client: client.get("/status", headers={"Authorization": "Bearer secret"}))
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"


def test_the_status_without_a_controller_has_no_models_and_no_memory():
    told = get("/status").json()
    assert (told["ready"], told["models"], told["memory"]) == (True, [], {})
    assert told["server"]["uptime_seconds"] >= 0


def test_the_memory_of_the_status_has_the_use_beyond_which_models_are_evicted():
    door, backend = door_of(memory_pressure_threshold_percent=80)

    async def states() -> States:
        return States({}, {}, {"used_bytes": 3, "limit_bytes": 1000}, monotonic())

    backend.states = states
    memory = knock(door, lambda client: client.get("/status")).json()["memory"]
    assert memory == {"used_bytes": 3, "limit_bytes": 1000, "pressure_bytes": 800}


@pytest.mark.parametrize(("devices", "num_gpus"), [(["cpu"], 0), (["cuda:0"], 1), (["cuda:0", "cuda:2"], 2)])
def test_the_status_names_each_gpu(devices, num_gpus):
    door, backend = door_of()
    each = [{"device": device, "used_bytes": 1, "limit_bytes": 500} for device in devices]
    model = {
        "state": "resident",
        "memory_bytes": 1,
        "pending": 0,
        "traffic": {},
        "device": devices[-1],
        "copies": devices[:-1],
    }

    async def states() -> States:
        return States({}, {"m": model}, {"used_bytes": 3, "limit_bytes": 1000, "devices": each}, monotonic())

    backend.states = states
    told = knock(door, lambda client: client.get("/status")).json()
    assert told["gpus"] == (each if num_gpus else [])
    assert told["gpu_count"] == num_gpus
    assert (told["models"][0]["device"], told["models"][0]["copies"]) == (devices[-1], devices[:-1])
    assert told["memory"].keys() == {"used_bytes", "limit_bytes", "pressure_bytes"}


def test_many_clients_cost_one_question_a_period():
    door, backend = door_of(DoorLimits(status_period_s=1000))
    num_asked, is_live = [], backend.is_live

    async def counted():
        num_asked.append(1)
        return await is_live()

    backend.is_live = counted

    async def many(client: httpx.AsyncClient) -> httpx.Response:
        answers = await asyncio.gather(*(client.get("/status") for _ in range(20)))
        answers.append(await client.get("/status"))
        assert len({answer.json()["timestamp"] for answer in answers}) == len(num_asked) == 1
        door.limits = DoorLimits(status_period_s=0)
        return await client.get("/status")

    knock(door, many)
    assert len(num_asked) == 2
