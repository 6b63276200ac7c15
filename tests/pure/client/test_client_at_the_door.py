"""Both clients, given the address of SIE's door instead of Triton's."""

import pytest

from sie_triton import SIEError
from tests.support.clients import KINDS, MODEL, raises_exactly
from tests.support.doors import door_of, listening


@KINDS
@pytest.mark.parametrize("transport", ["http", "grpc"])
@pytest.mark.parametrize("settings", [{}, {"auth_mode": "static", "auth_tokens": "secret"}], ids=["open", "token"])
def test_a_client_connected_to_the_door_names_tritons_ports(kind, transport, settings):
    door, _ = door_of(**settings)
    complaint = r"this is SIE's HTTP door, not Triton\. .* by default at port 8000 for HTTP and 8001 for gRPC"
    with listening(door) as port, kind(f"{transport}://127.0.0.1:{port}", timeout=20) as client:
        for call in (lambda: client.encode(MODEL, "a"), lambda: client.score(MODEL, "q", ["a"])):
            raises_exactly(call, SIEError, f"^{transport}://127.0.0.1:{port}: {complaint}")
