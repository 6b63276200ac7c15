"""Parse the address of a server."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from sie_triton.errors import InputError

ALLOWED = "give http://host:port, grpc://host:port, host:port for gRPC, or https and grpcs for TLS"

TRANSPORTS = {"http": "http", "https": "http", "grpc": "grpc", "grpcs": "grpc"}


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server."""

    transport: str
    target: str  # tritonclient's form of it: host:port, for HTTP with an optional path prefix
    is_secure: bool = False  # by TLS
    token: str = field(default="", repr=False)  # sent as bearer token; empty: none
    ca_file: str = ""  # certificates to trust, in PEM; empty: those of the system for HTTP, of grpcio for gRPC
    controller_port: int = 8003  # of the controller on the same host

    def __str__(self) -> str:
        return f"{self.transport}{'s' if self.is_secure else ''}://{self.target}"

    @classmethod
    def parse(cls, url: "str | Address", token: str = "", ca_file: str = "") -> "Address":
        """Return the address; InputError names what is wrong with it.

        >>> str(Address.parse("https://host:8000/triton/")), str(Address.parse("host:8001"))
        ('https://host:8000/triton', 'grpc://host:8001')
        """
        if isinstance(url, Address):
            if token or ca_file:
                raise InputError.at("url", "is an address with a token and certificates of its own")
            return url
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
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise InputError.at("token", "must be a string of printable ASCII")
        transport = TRANSPORTS[parts.scheme]
        address = cls(transport, parts.netloc + parts.path.rstrip("/"), parts.scheme != transport, token, ca_file)
        if not isinstance(ca_file, str):
            raise InputError.at("ca_file", f"must be a string, not {type(ca_file).__name__}")
        if ca_file and not address.is_secure:
            raise InputError.at("ca_file", f"has no effect at {address}; give an address with https or grpcs")
        if ca_file:
            address.tls_context()
        return address

    @property
    def host(self) -> str:
        return self.target.partition("/")[0].rpartition(":")[0]

    @property
    def headers(self) -> Mapping[str, str] | None:
        """Headers of HTTP, or metadata of gRPC, of each request."""
        return {"authorization": f"Bearer {self.token}"} if self.token else None

    def tls_context(self) -> ssl.SSLContext:
        """Return the context of TLS connections; InputError if the certificates cannot be read."""
        try:
            return ssl.create_default_context(cafile=self.ca_file or None)
        except OSError as exc:
            raise InputError.at("ca_file", f"{self.ca_file}: has no certificates in PEM ({exc})") from exc


def _complaint(parts: SplitResult, port: int | None) -> str | None:
    """Return the problem of a URL; None if it is valid."""
    if parts.scheme not in TRANSPORTS:
        return f"has the scheme {parts.scheme!r}, which is not supported"
    if "@" in parts.netloc:
        return "has a user name, which Triton does not accept"
    if not parts.hostname or any(letter.isspace() for letter in parts.netloc):
        return "has no host"
    if not port:
        return "has no port; Triton's default ports are 8000 for HTTP and 8001 for gRPC"
    if parts.query or parts.fragment:
        return "has a query or a fragment"
    if TRANSPORTS[parts.scheme] == "grpc" and parts.path.rstrip("/"):
        return f"has the path {parts.path!r}, which gRPC does not allow"
    return None
