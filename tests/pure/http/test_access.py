"""Routes of an API with and without tokens."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sie_triton.controller.token import admin_token, find_token
from sie_triton.http.access import Guard
from sie_triton.settings import read_settings


@pytest.mark.parametrize(
    ("guard", "token", "expected"),
    [
        (Guard("", ""), "", (401, 200)),
        (Guard("admin", ""), "admin", (200, 200)),
        (Guard("admin", "admin,reader"), "reader", (401, 200)),
        (Guard("admin", "admin,reader"), "other", (401, 401)),
    ],
    ids=str,
)
def test_changes_need_a_token_in_any_case_and_reads_if_there_is_one(guard, token, expected):
    assert statuses(guard, token) == expected


def statuses(guard, token):
    """Return the statuses of a change and of a read."""

    async def answer(request):
        return PlainTextResponse("")

    routes = [Route("/change", guard.change(answer)), Route("/read", guard.read(answer))]
    client, headers = TestClient(Starlette(routes=routes)), {"Authorization": f"Bearer {token}"}
    return tuple(client.get(path, headers=headers).status_code for path in ("/change", "/read"))


def test_tokens_of_a_file_change_while_the_server_runs(tmp_path):
    clients, admin = tmp_path / "clients", tmp_path / "admin"
    clients.write_text("first")
    admin.write_text("admin-first")
    settings = read_settings(auth_mode="token", auth_tokens=f"@{clients}", admin_token=f"@{admin}", data_dir=tmp_path)
    guard = Guard.of(settings, admin_token(tmp_path, settings.admin_token))
    for now, before in (("old", "new"), ("new", "old")):
        clients.write_text(now)
        admin.write_text(f"admin-{now}")
        found = [statuses(guard, each) for each in (now, before, f"admin-{now}", f"admin-{before}")]
        assert found == [(401, 200), (401, 401), (200, 200), (401, 401)]
        assert find_token(tmp_path, settings.admin_token) == f"admin-{now}"
