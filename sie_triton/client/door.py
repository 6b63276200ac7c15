"""Recognise SIE's door at an address that should be Triton's."""

from http.client import HTTPConnection, HTTPException, HTTPMessage, HTTPSConnection

from sie_triton.client.address import Address
from sie_triton.errors import SIEError

# Headers of every response of the door: a version, and Triton's gRPC port where clients of the door can reach it.
HEADER, GRPC_PORT = "X-SIE-Server-Version", "X-SIE-GRPC-Port"


def refuse_door(address: Address) -> None:
    """Send one GET request; if SIE's door answers it, raise an SIEError that names Triton's address."""
    headers = _headers(address)
    if HEADER not in headers:
        return
    remedy = "Triton can be reached on the server's machine only; from others, call the door with SIE's SDK"
    if port := headers.get(GRPC_PORT):
        remedy = f"connect to Triton itself, at grpc://{address.host}:{port}"
    raise SIEError(f"{address}: this is SIE's HTTP door, not Triton; {remedy}")


def _headers(address: Address) -> HTTPMessage:
    """Return the headers of a response; none if there is no HTTP server."""
    server, _, path = address.target.partition("/")
    if address.is_secure:
        connection: HTTPConnection = HTTPSConnection(server, timeout=1.0, context=address.tls_context())
    else:
        connection = HTTPConnection(server, timeout=1.0)
    try:
        connection.request("GET", f"/{path}")
        return connection.getresponse().headers
    except (OSError, HTTPException, ValueError):  # no server, not HTTP, or a name that cannot be resolved
        return HTTPMessage()
    finally:
        connection.close()
