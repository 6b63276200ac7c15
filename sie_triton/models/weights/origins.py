"""Origins of downloads: the cluster cache and the hub. Both describe files alike, and both resume."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

from sie_triton.errors import LoadError
from sie_triton.models.weights.cluster import SHA256, Cluster, ClusterFile

ETAG = re.compile(r"\w[\w.-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Remote:
    """A file as its origin describes it."""

    name: str
    etag: str  # name in the cache
    size: int | None  # checked; None for some small ones on the hub
    sha256: str | None  # checked; the hub gives it for large files only
    origin: "HubOrigin | ClusterOrigin"


class HubOrigin:
    """The files of one commit on the hub. Methods raise the library's errors. Threads may share it."""

    name = "the hub"

    def __init__(self, repo: str, commit: str) -> None:
        self._repo, self._commit = repo, commit
        self._headers = build_hf_headers(library_name="sie-triton")

    def look_up(self, name: str) -> Remote:
        found = get_hf_file_metadata(self._url(name), timeout=constants.HF_HUB_ETAG_TIMEOUT)
        if not found.etag or not ETAG.fullmatch(found.etag):
            raise LoadError(f"weights: {self._repo}: {constants.ENDPOINT} is not a model hub", "network")
        return Remote(name, found.etag, found.size, found.etag if SHA256.fullmatch(found.etag) else None, self)

    @contextmanager
    def open(self, name: str, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Request a file from byte `start`; give the position of the first byte, `start` or 0, and the bytes from it.

        The library's HTTP client sends the token only to the hub's own host.
        """
        headers = {**self._headers, "Accept-Encoding": "identity", **({"Range": f"bytes={start}-"} if start else {})}
        seconds = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream(
            "GET", self._url(name), headers=headers, timeout=seconds, follow_redirects=True
        ) as response:
            hf_raise_for_status(response)
            # Status 200: the server ignored Range and sends the whole file.
            yield start if response.status_code != 200 else 0, response.iter_bytes(1 << 20)

    def _url(self, name: str) -> str:
        return hf_hub_url(self._repo, name, revision=self._commit)


class ClusterOrigin:
    """The files of one commit in the cluster cache. Methods raise StoreError. Threads may share it."""

    name = "the cluster cache"

    def __init__(self, cluster: Cluster, repo: str, files: Mapping[str, ClusterFile]) -> None:
        self._cluster, self._repo, self._files = cluster, repo, files

    def look_up(self, name: str) -> Remote | None:
        """Return a file; None if the cluster cache does not have it."""
        file = self._files.get(name)
        return None if file is None else Remote(name, file.etag, file.size, file.sha256, self)

    @contextmanager
    def open(self, name: str, start: int) -> Iterator[tuple[int, Iterator[bytes]]]:
        yield start, self._cluster.pieces(self._repo, self._files[name], start)
