"""Have a known model served: Triton itself cannot add a model that a request names, but its controller can."""

from http.client import HTTPConnection, HTTPException
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from sie_triton.client.address import Address
from sie_triton.client.arguments import checked_model
from sie_triton.client.failures import NotServed
from sie_triton.client.limits import ClientLimits
from sie_triton.contract.names import triton_name
from sie_triton.errors import InputError, ModelLoading

REQUIRES_TOKEN = (
    "adds known models only for callers with a valid token; give it as token, or run on the server's machine "  # noqa: S105
    "sie-triton models add"
)


class ControllerAddress(NamedTuple):
    """Address of the controller beside a Triton."""

    target: str
    token: str = ""  # sent as bearer token; empty: none
    advice: str = ""  # ends the error about a model that is not served, if no controller answers there

    @classmethod
    def beside(cls, triton: Address, url: str | None) -> "ControllerAddress | None":
        """Parse the controller's `url`; None means the port beside Triton, "" that it must not be asked.

        The controller has no TLS, so that with TLS only a `url` makes a client ask it.

        >>> ControllerAddress.beside(Address("grpc", "host:8001"), None).target
        'host:8003'
        """
        if url is None and not triton.is_secure:
            return cls.given(f"{triton.host}:{triton.controller_port}", triton.token)
        if not url:
            return None
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme != "http" or not parts.netloc:
            raise InputError.at("controller_url", f"must be http://host:port, not {url!r}")
        return cls.given(parts.netloc, triton.token)

    @classmethod
    def given(cls, target: str, token: str = "") -> "ControllerAddress":
        """Return the address that a client asks, with advice to its caller."""
        advice = "set controller_url or --controller-port"
        return cls(target, token, f"; no controller, which adds known models, answers at {target}: {advice}")


def serve_known(controller: ControllerAddress, model: str, seconds: float = ClientLimits.serve_s) -> bool:
    """Return True once the known model is in service, and False if no controller can say: Triton's own answer stands.

    Raise NotServed if it is not a known model, or the controller requires a token; ModelLoading if there is no room for
    it yet, or no time.
    """
    path = f"/v1/models/{quote(triton_name(checked_model(model)), safe='')}"
    headers = {"Authorization": f"Bearer {controller.token}"} if controller.token else {}
    connection = HTTPConnection(controller.target, timeout=max(0.001, min(seconds, ClientLimits.connect_controller_s)))
    try:
        connection.connect()
    except (OSError, ValueError):
        return False
    try:
        connection.sock.settimeout(max(0.001, min(seconds, ClientLimits.serve_s)))
        connection.request("PUT", path, headers=headers)
        response = connection.getresponse()
        status, reason = response.status, response.read(4096).decode(errors="replace").strip()
        requires_token = status == 401 and response.getheader("WWW-Authenticate") == "Bearer"
    except TimeoutError as exc:
        raise ModelLoading(f"{model} was not in service after {seconds:.3g} s; retry") from exc
    except (OSError, HTTPException, ValueError):
        return False
    finally:
        connection.close()
    if requires_token:
        raise NotServed(f"model: {model} is not served, and {controller.target} {REQUIRES_TOKEN} {model}", model)
    is_controllers = triton_name(model) in triton_name(reason)  # another program may listen there
    if status == 404 and is_controllers:
        raise NotServed(f"model: {reason}", model)
    if status == 503 and is_controllers:
        raise ModelLoading(reason)
    return status == 200 and is_controllers
