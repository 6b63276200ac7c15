"""PDFs sent as images → their pages, each of which becomes an item."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sie_triton.contract import PAGES
from sie_triton.contract.tensors import IMAGE
from sie_triton.errors import InputError
from sie_triton.models.inputs.images import ImageFile, Page
from sie_triton.models.inputs.limits import LIMITS, InputLimits
from sie_triton.models.inputs.pdf.document import is_pdf, opened

RANGE = re.compile(r"([0-9]{1,9})(-([0-9]{1,9})?)?")


@dataclass(frozen=True, slots=True)
class PageSelection:
    """Selected pages of a request: pairs of the first and the last page, None: to the end. Empty: all pages."""

    ranges: tuple[tuple[int, int | None], ...] = ()

    @classmethod
    def read(cls, text: str) -> "PageSelection":
        """Parse the parameter pages. Raise InputError if it is malformed.

        >>> PageSelection.read("2-3, 8-").ranges
        ((2, 3), (8, None))
        """
        if len(text) > LIMITS.max_selection_characters:
            raise InputError.at(
                f"parameter {PAGES.name}",
                f"has {len(text)} characters; send at most {LIMITS.max_selection_characters}, as in 1-3,8 or 5-",
            )
        return cls(tuple(map(_range, text.split(","))) if text else ())

    def of(self, num_pages: int, where: str, most: int) -> list[int]:
        """Return the selected page numbers, ascending, each once. Raise InputError if the file lacks one, or for more.

        >>> PageSelection.read("9,2-3,3").of(9, "image[0]", 5), PageSelection().of(2, "image[0]", 5)
        ([2, 3, 9], [1, 2])
        """
        found: set[int] = set()
        for first, last in self.ranges or ((1, None),):
            if max(first, last or 0) > num_pages:
                raise InputError.at(
                    f"parameter {PAGES.name}", f"{where} has {num_pages} pages, but no page {max(first, last or 0)}"
                )
            found.update(range(first, min(last or num_pages, first + most) + 1))
            if len(found) > most:
                raise InputError.at(
                    where,
                    f"more than {most} pages of {num_pages} are selected; select fewer with the parameter "
                    f"{PAGES.name}, or raise max_pages",
                )
        return sorted(found)


ALL = PageSelection()


@dataclass(frozen=True, slots=True)
class PageReader:
    """Reads the selected pages of the PDFs of one request; refuses a PDF with more than `max_pages` selected pages.

    Drawing stops once `is_over()`, which is called a few times a second.
    """

    selection: PageSelection
    max_pages: int
    max_bytes: int
    is_over: Callable[[], bool] = lambda: False
    limits: InputLimits = LIMITS

    def pages(self, element: Any) -> Iterator[tuple[int, Any]] | None:
        """Yield each page number, and `element` with that page in place of its PDF. Return None if it has no PDF.

        Each page is drawn when the iterator reaches it. InputError names the image; Cancelled once the request is over.
        """
        file = pdf_in(element)
        if file is None:
            return None
        pages = self._drawn(file)
        is_item = isinstance(element, Mapping)
        return ((number, {**element, IMAGE.name: page} if is_item else page) for number, page in pages)

    def _drawn(self, file: ImageFile) -> Iterator[tuple[int, Page]]:
        if len(file.content) > self.max_bytes:
            raise InputError.at(
                file.where,
                f"is a PDF of {len(file.content)} bytes; send at most {self.max_bytes}, or raise max_document_bytes",
            )
        with opened(file.content, file.where, self.is_over, self.limits) as document:
            for number in self.selection.of(document.num_pages, file.where, self.max_pages):
                drawing = document.draw(number)
                yield number, Page(drawing.pixels, f"{file.where}, page {number}", drawing)


def pdf_in(element: Any) -> ImageFile | None:
    """Return the PDF file in the image field of an element; None if there is none."""
    file = element.get(IMAGE.name) if isinstance(element, Mapping) else element
    return file if isinstance(file, ImageFile) and is_pdf(file.content) else None


def _range(text: str) -> tuple[int, int | None]:
    found = RANGE.fullmatch(text.strip())
    first, last = (int(found[1]), int(found[3] or found[1]) if not found[2] or found[3] else None) if found else (0, 0)
    if first < 1 or (last is not None and last < first):
        raise InputError.at(
            f"parameter {PAGES.name}",
            f"{text.strip()[:40]!r} is not allowed; give page numbers from 1, or ranges, as in 1-3,8 or 5-",
        )
    return first, last
