"""Routes of an API with and without tokens."""

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from sie_triton.http.access import Guard


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
    async def answer(request):
        return PlainTextResponse("")

    routes = [Route("/change", guard.change(answer)), Route("/read", guard.read(answer))]
    client = TestClient(Starlette(routes=routes))
    headers = {"Authorization": f"Bearer {token}"}
    assert tuple(client.get(path, headers=headers).status_code for path in ("/change", "/read")) == expected
