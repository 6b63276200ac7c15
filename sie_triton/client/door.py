"""Recognise SIE's door at an address that should be Triton's."""

from http.client import HTTPConnection, HTTPException, HTTPSConnection

from sie_triton.client.address import Address
from sie_triton.errors import SIEError

# Every response of the door has this header.
HEADER = "X-SIE-Server-Version"

# Timeout of each read and write, in seconds.
TIMEOUT_S = 1.0


def refuse_door(address: Address) -> None:
    """Send one GET request; if SIE's door answers it, raise an SIEError that names Triton's default ports."""
    if not _is_door(address):
        return
    raise SIEError(
        f"{address}: this is SIE's HTTP door, not Triton. SIEClient connects to Triton itself, "
        f"by default at port 8000 for HTTP and 8001 for gRPC"
    )


def _is_door(address: Address) -> bool:
    server, _, path = address.target.partition("/")
    if address.is_secure:
        connection: HTTPConnection = HTTPSConnection(server, timeout=TIMEOUT_S, context=address.tls_context())
    else:
        connection = HTTPConnection(server, timeout=TIMEOUT_S)
    try:
        connection.request("GET", f"/{path}")
        return connection.getresponse().getheader(HEADER) is not None
    except (OSError, HTTPException, ValueError):  # no server, not HTTP, or a name that cannot be resolved
        return False
    finally:
        connection.close()
