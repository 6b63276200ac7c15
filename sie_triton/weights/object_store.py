"""Objects of an object store (S3, Google Cloud Storage, a directory), read and written within bounds.

Endpoint and credentials come from the usual environment variables: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, GOOGLE_APPLICATION_CREDENTIALS and so on.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Opened

# Bytes of one request; each has a timeout of its own, so that a slow connection still makes progress.
PIECE_BYTES = 8 << 20
TIMEOUT_S, CONNECT_TIMEOUT_S, RETRY_S = 60, 5, 10
MAX_RETRIES = 2

# Objects of one page of a listing.
PAGE = 1000
MAX_MESSAGE = 200


class StoreError(Exception):
    """The store cannot be reached, refuses, or has something else than expected; one line says which."""


@dataclass(frozen=True, slots=True)
class Listed:
    """An object of a listing; `version` changes with its content."""

    path: str
    size: int
    version: str


class ObjectStore:
    """The objects below `url` (s3://bucket/prefix, gs://bucket/prefix or file:///directory). Threads may share it.

    Every method raises StoreError if the store cannot be reached or refuses. A directory is made if `make`.
    """

    def __init__(self, url: str, *, make: bool = True) -> None:
        # Imported when needed: stages whose weights are on disk do not pay for it.
        from obstore.store import from_url

        self.url = url.rstrip("/")
        options: dict[str, Any] = {}
        if self.url.startswith("file:"):
            options = {"mkdir": make}
        else:
            retry = {"max_retries": MAX_RETRIES, "retry_timeout": timedelta(seconds=RETRY_S)}
            timeouts = {"timeout": f"{TIMEOUT_S}s", "connect_timeout": f"{CONNECT_TIMEOUT_S}s"}
            # A store in one's own network often has no certificate; AWS_ENDPOINT_URL decides.
            options = {"client_options": {**timeouts, "allow_http": True}, "retry_config": retry}
        with self._explained(""):
            self._store: Opened = from_url(self.url, **options)

    def read(self, path: str, max_bytes: int) -> bytes | None:
        """Return the content of a small object; None if there is none."""
        import obstore

        with self._explained(path):
            try:
                found = obstore.get(self._store, path)
            except FileNotFoundError:
                return None
            if found.meta["size"] > max_bytes:
                raise StoreError(f"{self.url}/{path} has {found.meta['size']} bytes, at most {max_bytes} are allowed")
            return bytes(found.bytes())

    def size(self, path: str) -> int | None:
        """Return the size of an object in bytes; None if there is none."""
        import obstore

        with self._explained(path):
            try:
                return obstore.head(self._store, path)["size"]
            except FileNotFoundError:
                return None

    def pieces(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of an object from `start` to `end`, in pieces of at most PIECE_BYTES."""
        import obstore

        while start < end:
            with self._explained(path):
                piece = bytes(obstore.get_range(self._store, path, start=start, end=min(start + PIECE_BYTES, end)))
            if not piece:
                raise StoreError(f"{self.url}/{path} is shorter than its manifest says")
            yield piece
            start += len(piece)

    def write(self, path: str, content: bytes | Iterable[bytes]) -> None:
        """Write an object; it appears complete or not at all."""
        import obstore

        with self._explained(path):
            obstore.put(self._store, path, content if isinstance(content, bytes) else iter(content))

    def list(self, prefix: str = "") -> Iterator[Listed]:
        import obstore

        with self._explained(prefix):
            for page in obstore.list(self._store, prefix or None, chunk_size=PAGE):
                for each in page:
                    version = each.get("e_tag") or str(each["last_modified"])
                    yield Listed(each["path"], each["size"], version)

    def remove(self, path: str) -> None:
        import obstore

        with self._explained(path):
            try:
                obstore.delete(self._store, path)
            except FileNotFoundError:
                return

    @contextmanager
    def _explained(self, path: str) -> Iterator[None]:
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as exc:
            where = f"{self.url}/{path}" if path else self.url
            line = next(iter(str(exc).splitlines()), type(exc).__name__).strip()
            raise StoreError(f"{where}: {line[:MAX_MESSAGE]}") from exc
