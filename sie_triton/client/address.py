"""Parse the address of a server."""

from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from sie_triton.errors import InputError

ALLOWED = "give http://host:port, grpc://host:port, or host:port for gRPC"


class Address(NamedTuple):
    """Address of a server; `target` is tritonclient's form of it: host:port, for HTTP with an optional path prefix."""

    transport: str
    target: str

    def __str__(self) -> str:
        return f"{self.transport}://{self.target}"

    @classmethod
    def parse(cls, url: str) -> "Address":
        """
        >>> Address.parse("http://host:8000/triton/"), Address.parse("host:8001")
        (Address(transport='http', target='host:8000/triton'), Address(transport='grpc', target='host:8001'))
        """
        if not isinstance(url, str):
            raise InputError.at("url", f"must be a string, not {type(url).__name__}; {ALLOWED}")
        try:
            parts = urlsplit(url if "://" in url else f"grpc://{url}")
            complaint = _complaint(parts, parts.port)
        except ValueError as exc:
            complaint = f"cannot be read ({exc})"
        if complaint:
            shown = "" if "@" in url else f"{url!r} "  # the URL may contain a password
            raise InputError.at("url", f"{shown}{complaint}; {ALLOWED}")
        return cls(parts.scheme, parts.netloc + parts.path.rstrip("/"))


def _complaint(parts: SplitResult, port: int | None) -> str | None:
    """Return the problem of a URL; None if it is valid."""
    if parts.scheme in ("https", "grpcs"):
        return f"asks for TLS ({parts.scheme}), which SIEClient does not support; connect through a local TLS proxy"
    if parts.scheme not in ("http", "grpc"):
        return f"has the scheme {parts.scheme!r}, which is not supported"
    if "@" in parts.netloc:
        return "has a user name, which Triton does not accept"
    if not parts.hostname or any(letter.isspace() for letter in parts.netloc):
        return "has no host"
    if not port:
        return "has no port; Triton's default ports are 8000 for HTTP and 8001 for gRPC"
    if parts.query or parts.fragment:
        return "has a query or a fragment"
    if parts.scheme == "grpc" and parts.path.rstrip("/"):
        return f"has the path {parts.path!r}, which gRPC does not allow"
    return None
