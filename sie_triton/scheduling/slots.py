"""Preprocessing slots of the whole server: how many steps of bulk work and decoding run at once, of all models.

The slots are locked bytes of one file, so a process that is killed gives its slots back. Small requests need no slot:
each model makes their features on Triton's thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sie_triton.host.file_locks import Line, Lock, LockFile

# First bytes of the turns of lines, and of the slots.
BULK_TURN, IMAGE_TURN, DRAWING_TURN = range(3)
SLOTS, IMAGE_SLOTS, DRAWING_SLOTS = 1 << 10, 2 << 10, 3 << 10


class Slots:
    """The slots in `file`, which all preprocess processes of a server share. Any thread may call the methods.

    `num_workers` steps run at once. Of these, `num_image_workers` at most prepare images or sounds. Half as many pages
    of PDFs are drawn at once besides, by processes of their own.
    """

    def __init__(self, file: LockFile, num_workers: int, num_image_workers: int) -> None:
        self._file = file
        self._end = SLOTS + num_workers
        self.num_workers = num_workers
        self.num_images = min(num_image_workers, num_workers)
        self.num_drawing = max(1, num_image_workers // 2)
        self._bulk = Line(self._file, BULK_TURN, SLOTS, self._end)
        self._images = Line(self._file, IMAGE_TURN, IMAGE_SLOTS, IMAGE_SLOTS + self.num_images)
        self._drawing = Line(self._file, DRAWING_TURN, DRAWING_SLOTS, DRAWING_SLOTS + self.num_drawing)

    @property
    def num_taken(self) -> int:
        return self._file.num_locked(SLOTS, self._end)

    @property
    def has_waiting(self) -> bool:
        return self._bulk.has_waiting

    def bulk(self) -> Lock:
        """Wait for a slot for one step of bulk work."""
        return self._bulk.wait()

    @contextmanager
    def image(self) -> Iterator[None]:
        """Context with a slot for one image or sound.

        Every thread takes the two locks in this order, so no two threads wait for each other.
        """
        with self._images.wait(), self._bulk.wait():
            yield

    def drawing(self) -> Lock:
        """Wait for a slot for drawing one page."""
        return self._drawing.wait()

    def close(self) -> None:
        """Close the file once no slot is held."""
        self._file.close()
