"""Both clients, given the address of SIE's door instead of Triton's."""

import pytest

from sie_triton import SIEError
from sie_triton.doors.triton import TritonBackend
from sie_triton.settings import read_settings
from tests.support.clients import KINDS, MODEL, raises_exactly
from tests.support.doors import door_of, listening


@KINDS
@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize(
    ("grpc_port", "remedy"),
    [
        (8301, "connect to Triton itself, at grpc://127.0.0.1:8301$"),
        (0, "Triton can be reached on the server's machine"),
    ],
)
def test_a_client_connected_to_the_door_names_tritons_address(kind, transport, grpc_port, remedy):
    door, backend = door_of()
    backend.grpc_port = grpc_port
    with listening(door) as port, kind(f"{transport}://127.0.0.1:{port}", timeout=20) as client:
        complaint = f"^{transport}://127.0.0.1:{port}: this is SIE's HTTP door, not Triton; {remedy}"
        for call in (lambda: client.encode(MODEL, "a"), lambda: client.score(MODEL, "q", ["a"])):
            raises_exactly(call, SIEError, complaint)


@pytest.mark.parametrize(("settings", "port"), [({}, 8301), ({"auth_mode": "token", "auth_tokens": "secret"}, 0)])
def test_the_door_names_no_port_that_its_clients_cannot_reach(settings, port):
    assert TritonBackend(read_settings(grpc_port=8301, **settings)).grpc_port == port
