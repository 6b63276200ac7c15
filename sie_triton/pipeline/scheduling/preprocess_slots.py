"""Preprocessing slots of the whole server: how many steps of bulk work and decoding run at once, of all models.

The slots are locked bytes of one file, so a process that is killed gives its slots back. Small requests need no slot:
each model makes their features on Triton's thread.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Semaphore

from sie_triton.system.host.file_locks import Line, LockFile

# First bytes of the turns of lines, and of the slots.
BULK_TURN, IMAGE_TURN, DRAWING_TURN = range(3)
SLOTS, IMAGE_SLOTS, DRAWING_SLOTS = 1 << 10, 2 << 10, 3 << 10


class SlotKind:
    """Slots of one kind: `most` for each process, which serves one model, and one more, so that none holds all."""

    def __init__(self, file: LockFile, turn: int, start: int, most: int) -> None:
        self.line = Line(file, turn, start, start + most + 1)
        self._own = Semaphore(most)

    @contextmanager
    def slot(self) -> Iterator[None]:
        with self._own, self.line.wait():
            yield


class Slots:
    """The slots in `file`, which all preprocess processes of a server share. Any thread may call the methods.

    `num_workers` steps of a process run at once. Of these, `num_image_workers` at most prepare images or sounds. In
    addition, half as many pages of PDFs are drawn at once, by separate processes.
    """

    def __init__(self, file: LockFile, num_workers: int, num_image_workers: int) -> None:
        self._file = file
        self.num_workers = num_workers
        self.num_images = min(num_image_workers, num_workers)
        self.num_drawing = max(1, num_image_workers // 2)
        self._bulk = SlotKind(file, BULK_TURN, SLOTS, num_workers)
        self._images = SlotKind(file, IMAGE_TURN, IMAGE_SLOTS, self.num_images)
        self._drawing = SlotKind(file, DRAWING_TURN, DRAWING_SLOTS, self.num_drawing)

    @property
    def num_taken(self) -> int:
        return self._file.num_locked(SLOTS, SLOTS + self.num_workers + 1)

    @property
    def has_waiting(self) -> bool:
        return self._bulk.line.has_waiting

    def bulk(self) -> AbstractContextManager[None]:
        """Context with a slot for one step of bulk work."""
        return self._bulk.slot()

    @contextmanager
    def image(self) -> Iterator[None]:
        """Context with a slot for one image or sound.

        Every thread takes the two locks in this order, so no two threads wait for each other.
        """
        with self._images.slot(), self._bulk.slot():
            yield

    def drawing(self) -> AbstractContextManager[None]:
        """Context with a slot for drawing one page."""
        return self._drawing.slot()

    def close(self) -> None:
        """Close the file once no slot is held."""
        self._file.close()
