"""Objects of an object store (S3, Google Cloud Storage, a directory), read and written within bounds.

Endpoint and credentials come from the usual environment variables: AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION, GOOGLE_APPLICATION_CREDENTIALS and so on.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from sie_triton.models.weights.limits import LIMITS, WeightLimits

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Opened

T = TypeVar("T")

# Timeout of a call of AsyncObjectStore, in seconds, and the bytes for each of which it has one second more.
ANSWER_S, LEAST_BYTES_PER_S = 10.0, 4 << 20

# Objects of one page of a listing.
PAGE = 1000


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

    def __init__(self, url: str, *, make: bool = True, limits: WeightLimits = LIMITS) -> None:
        # Imported when needed: stages whose weights are on disk do not pay for it.
        from obstore.store import from_url

        self.url, self._limits = url.rstrip("/"), limits
        options: dict[str, Any] = {}
        if self.url.startswith("file:"):
            options = {"mkdir": make}
        else:
            retry = {"max_retries": 2, "retry_timeout": timedelta(seconds=limits.retry_s)}
            timeouts = {"timeout": f"{limits.request_timeout_s}s", "connect_timeout": f"{limits.connect_timeout_s}s"}
            # A store in one's own network often has no certificate; AWS_ENDPOINT_URL decides.
            options = {"client_options": {**timeouts, "allow_http": True}, "retry_config": retry}
        with self.explained(""):
            self.opened: Opened = from_url(self.url, **options)

    def read(self, path: str, max_bytes: int) -> bytes | None:
        """Return the content of a small object; None if there is none."""
        with self.explained(path):
            try:
                found = self.opened.get(path)
            except FileNotFoundError:
                return None
            if found.meta["size"] > max_bytes:
                raise StoreError(f"{self.url}/{path} has {found.meta['size']} bytes, at most {max_bytes} are allowed")
            return bytes(found.bytes())

    def size(self, path: str) -> int | None:
        """Return the size of an object in bytes; None if there is none."""
        with self.explained(path):
            try:
                return self.opened.head(path)["size"]
            except FileNotFoundError:
                return None

    def pieces(self, path: str, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of an object from `start` to `end`, in pieces."""
        while start < end:
            with self.explained(path):
                piece = bytes(self.opened.get_range(path, start=start, end=min(start + self._limits.piece_bytes, end)))
            if not piece:
                raise StoreError(f"{self.url}/{path} is shorter than its manifest says")
            yield piece
            start += len(piece)

    def write(self, path: str, content: bytes | Iterable[bytes]) -> None:
        """Write an object; it appears complete or not at all."""
        with self.explained(path):
            self.opened.put(path, content if isinstance(content, bytes) else iter(content))

    def list(self, prefix: str = "") -> Iterator[Listed]:
        with self.explained(prefix):
            for page in self.opened.list(prefix or None, chunk_size=PAGE):
                for each in page:
                    version = each.get("e_tag") or str(each["last_modified"])
                    yield Listed(each["path"], each["size"], version)

    def remove(self, path: str) -> None:
        with self.explained(path):
            try:
                self.opened.delete(path)
            except FileNotFoundError:
                return

    @contextmanager
    def explained(self, path: str) -> Iterator[None]:
        """Raise StoreError in the place of the library's errors about an object."""
        from obstore.exceptions import BaseError

        try:
            yield
        except (BaseError, OSError, ValueError) as exc:
            where = f"{self.url}/{path}" if path else self.url
            line = next(iter(str(exc).splitlines()), type(exc).__name__).strip()
            raise StoreError(f"{where}: {line[:200]}") from exc


class AsyncObjectStore:
    """The objects below a URL for one event loop. No thread waits for the store, and a cancelled call ends.

    Every method raises StoreError as those of ObjectStore do, and if the store does not answer in time.
    """

    def __init__(self, url: str) -> None:
        self._store = ObjectStore(url)

    async def read(self, path: str, max_bytes: int) -> bytes | None:
        """Return the content of an object; None if there is none."""
        with self._store.explained(path):
            try:
                found = await _in_time(self._store.opened.get_async(path))
            except FileNotFoundError:
                return None
            num_bytes = found.meta["size"]
            if num_bytes > max_bytes:
                raise StoreError(f"{self._store.url}/{path} has {num_bytes} bytes, at most {max_bytes} are allowed")
            return bytes(await _in_time(found.bytes_async(), num_bytes))

    async def size(self, path: str) -> int | None:
        """Return the size of an object in bytes; None if there is none."""
        with self._store.explained(path):
            try:
                return (await _in_time(self._store.opened.head_async(path)))["size"]
            except FileNotFoundError:
                return None

    async def write(self, path: str, content: bytes) -> None:
        """Write an object by one request; it appears complete or not at all.

        Parts of an upload that is cancelled would stay in the bucket.
        """
        with self._store.explained(path):
            put = self._store.opened.put_async(path, content, use_multipart=False)
            await _in_time(put, len(content))

    async def remove(self, path: str) -> None:
        with self._store.explained(path), suppress(FileNotFoundError):
            await _in_time(self._store.opened.delete_async(path))

    async def paths(self, prefix: str) -> AsyncIterator[str]:
        """Yield the paths of all objects below `prefix`."""
        pages = self._store.opened.list(prefix, chunk_size=PAGE)
        while True:
            with self._store.explained(prefix):
                page = await _in_time(anext(pages, None))
            if page is None:
                return
            for each in page:
                yield each["path"]


async def _in_time(answer: Awaitable[T], num_bytes: int = 0) -> T:
    """Return the answer to a call that transfers `num_bytes`; TimeoutError if it takes too long."""
    seconds = ANSWER_S + num_bytes / LEAST_BYTES_PER_S
    try:
        async with asyncio.timeout(seconds):
            return await answer
    except TimeoutError:
        raise TimeoutError(f"no answer within {seconds:.3g} s") from None
