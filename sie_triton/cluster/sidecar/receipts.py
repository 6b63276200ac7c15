"""Receipts of the work in progress, in a mapped file: a sidecar gives back what one before it has left.

The queue gives work to another worker once it has had no word of it for seconds. The sidecar that takes the place of a
killed one need not wait for that: it finds the receipts of its work, and returns it at once.
"""

import logging
import mmap
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sie_triton.cluster import subjects
from sie_triton.system.host.files import reserve

log = logging.getLogger(__name__)

FILE = "sidecar.receipts"

# Bytes of a receipt. What does not fit into the file is given to another worker after SidecarLimits.ack_wait_s.
PLACE_BYTES = 1024

EMPTY = b"\0"


class Receipts:
    """Receipts of this sidecar's work. Belongs to one event loop. Without space for a file, none are kept.

    `left`: the receipts that the sidecar before this one has left in `directory`.
    """

    def __init__(self, directory: Path, num_places: int = 1024) -> None:
        path, num_bytes = directory / FILE, num_places * PLACE_BYTES
        self.left = _receipts_in(path, num_bytes)
        self._free: deque[int] = deque()
        try:
            self._file = _mapped(path, num_bytes)
        except OSError as exc:
            log.warning("%s cannot be written: work that this sidecar leaves waits longer: %s", path, exc)
        else:
            self._free.extend(range(num_places))

    @contextmanager
    def kept(self, receipt: str) -> Iterator[None]:
        """Keep a receipt within the context, if there is a place for it."""
        data = receipt.encode()
        if not self._free or len(data) > PLACE_BYTES:
            yield
            return
        place = self._free.popleft()
        at = slice(place * PLACE_BYTES, (place + 1) * PLACE_BYTES)
        self._file[at] = data.ljust(PLACE_BYTES, EMPTY)
        try:
            yield
        finally:
            self._file[at] = EMPTY * PLACE_BYTES
            self._free.append(place)


def _mapped(path: Path, num_bytes: int) -> mmap.mmap:
    """Map a new file of empty places. It takes the place of an old one, which another process may still map."""
    new = path.with_suffix(".new")
    reserve(new, num_bytes)
    os.replace(new, path)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), num_bytes)


def _receipts_in(path: Path, num_bytes: int) -> list[str]:
    """Return the receipts in a file, which may be missing, or damaged."""
    with suppress(OSError), path.open("rb") as file:
        data = file.read(num_bytes)
        places = (data[start : start + PLACE_BYTES] for start in range(0, len(data), PLACE_BYTES))
        found = (place.rstrip(EMPTY).decode(errors="replace") for place in places if not place.startswith(EMPTY))
        return [receipt for receipt in found if subjects.delivered(receipt)]
    return []
