"""Receipts of the work in progress, in a mapped file: a sidecar gives back what one before it has left.

The queue gives work to another worker once it has had no word of it for ACK_WAIT_S. The sidecar that takes the place of
a killed one need not wait for that: it finds the receipts of its work, and returns it at once.
"""

import logging
import mmap
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sie_triton.cluster import subjects
from sie_triton.system.processes.mapped_files import reserve

log = logging.getLogger(__name__)

FILE = "sidecar.receipts"

# Receipts that are kept at a time, and bytes of one. What does not fit is given to another worker after ACK_WAIT_S.
NUM_PLACES, PLACE_BYTES = 1024, 1024
NUM_BYTES = NUM_PLACES * PLACE_BYTES

EMPTY = b"\0"


class Receipts:
    """Receipts of this sidecar's work. Belongs to one event loop. Without space for a file, none are kept.

    `left`: the receipts that the sidecar before this one has left in `directory`.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / FILE
        self.left = _receipts_in(path)
        self._free: deque[int] = deque()
        try:
            self._file = _mapped(path)
        except OSError as exc:
            log.warning("%s cannot be written: work that this sidecar leaves waits longer: %s", path, exc)
        else:
            self._free.extend(range(NUM_PLACES))

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


def _mapped(path: Path) -> mmap.mmap:
    """Map a new file of empty places. It takes the place of an old one, which another process may still map."""
    new = path.with_suffix(".new")
    reserve(new, NUM_BYTES)
    os.replace(new, path)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), NUM_BYTES)


def _receipts_in(path: Path) -> list[str]:
    """Return the receipts in a file, which may be missing, or damaged."""
    with suppress(OSError), path.open("rb") as file:
        data = file.read(NUM_BYTES)
        places = (data[start : start + PLACE_BYTES] for start in range(0, len(data), PLACE_BYTES))
        found = (place.rstrip(EMPTY).decode(errors="replace") for place in places if not place.startswith(EMPTY))
        return [receipt for receipt in found if subjects.is_receipt(receipt)]
    return []
