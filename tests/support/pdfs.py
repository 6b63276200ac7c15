"""PDF files: pages with pictures on them, and files that are broken or too costly to draw."""

import io
import zlib
from collections.abc import Iterator, Sequence
from functools import cache

import pypdfium2
from PIL import Image

from tests.support.pictures import picture

DAMAGED, TOO_MUCH = "is damaged", "cannot be drawn"

# What draws them does not survive them.
ENDED = "cannot be drawn within the limits of memory and time"


def pages(sizes: Sequence[tuple[int, int]] = ((96, 128), (128, 96), (200, 100)), seed: int = 0) -> list[Image.Image]:
    return [picture(*size, seed=seed + i) for i, size in enumerate(sizes)]


def pdf_of(images: Sequence[Image.Image]) -> bytes:
    """PDF with a page for each picture, as large in points as the picture is in pixels."""
    document = pypdfium2.PdfDocument.new()
    for image in images:
        bitmap, held = pypdfium2.PdfBitmap.from_pil(image), pypdfium2.PdfImage.new(document)
        held.set_bitmap(bitmap)
        held.set_matrix(pypdfium2.PdfMatrix().scale(*image.size))
        page = document.new_page(*image.size)
        page.insert_obj(held)
        page.gen_content()
    file = io.BytesIO()
    document.save(file)
    return file.getvalue()


def written(
    content: bytes = b"", box: str = "0 0 100 100", objects: Sequence[bytes] = (), trailer: bytes = b""
) -> bytes:
    """Write a PDF by hand: one page with that content, `objects` from number 5 on, and further keys of the trailer."""
    made = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        f"<</Type/Page/Parent 2 0 R/MediaBox[{box}]/Contents 4 0 R/Resources<</XObject<</X 5 0 R>>>>>>".encode(),
        b"<</Length %d>>stream\n%s\nendstream" % (len(content), content),
        *objects,
    ]
    file, places = b"%PDF-1.7\n", []
    for number, each in enumerate(made, 1):
        places.append(len(file))
        file += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(made) + 1
    return (
        file
        + b"xref\n0 %d\n0000000000 65535 f \n%s" % (size, table)
        + (b"trailer\n<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF\n" % (size, trailer, len(file)))
    )


def words(font: bytes, *objects: bytes) -> bytes:
    """PDF of one page with a word in `font`, object 5; `objects`, from number 6 on, are its parts."""
    page = written(b"BT /F 24 Tf 5 40 Td (Hello) Tj ET", objects=[font, *objects])
    return page.replace(b"/XObject<</X 5 0 R>>", b"/Font<</F 5 0 R>>")


def embedded_font(file: bytes) -> tuple[bytes, ...]:
    """Font for `words`: a TrueType font embedded in the PDF."""
    name = b"/AAAAAA+Mine"
    return (
        b"<</Type/Font/Subtype/TrueType/BaseFont%s/Encoding/WinAnsiEncoding/FontDescriptor 6 0 R>>" % name,
        b"<</Type/FontDescriptor/FontName%s/Flags 32/FontFile2 7 0 R>>" % name,
        stream(file, b""),
    )


def stream(content: bytes, fields: bytes) -> bytes:
    return b"<<%s/Length %d>>stream\n%s\nendstream" % (fields, len(content), content)


@cache
def unreadable() -> dict[str, tuple[bytes, str]]:
    """Name → the file, and a part of its error message; empty: the file may be drawn, or refused."""
    return {**dict(_broken()), **dict(_locked()), **dict(_costly())}


def refused() -> dict[str, tuple[bytes, str]]:
    """Files whose error message is certain."""
    return {name: each for name, each in unreadable().items() if each[1]}


def drawn(content: bytes) -> list[Image.Image]:
    """Return the pages as the library draws them."""
    return [page.render(scale=150 / 72).to_pil().convert("RGB") for page in pypdfium2.PdfDocument(content)]


def _broken() -> Iterator[tuple[str, tuple[bytes, str]]]:
    whole = pdf_of(pages())
    yield "a header alone", (b"%PDF-1.7\n", DAMAGED)
    yield "a header and zeros", (b"%PDF-1.7\n" + bytes(100_000), DAMAGED)
    yield "a tenth", (whole[: len(whole) // 10], DAMAGED)
    yield "half", (whole[: len(whole) // 2], "")
    yield "its end lost", (whole[:-200], "")
    yield "its middle lost", (whole[:1000] + whole[-1000:], "")
    yield "a table that leads nowhere", (whole.replace(b"startxref", b"startxerf"), "")
    yield "no pages", (written().replace(b"/Kids[3 0 R]/Count 1", b"/Kids[]/Count 0"), DAMAGED)
    yield "a page without a size", (written(box="0 0 0 0"), "")
    yield "a page of negative size", (written(box="9 9 -9 -9"), "")


def _locked() -> Iterator[tuple[str, tuple[bytes, str]]]:
    # RC4 of 40 bits; no password that anybody could guess opens it.
    rights = b"/Filter/Standard/V 1/R 2/O<%s>/U<%s>/P -4" % (b"61" * 32, b"62" * 32)
    yield "encrypted", (written(trailer=b"/Encrypt<<%s>>/ID[<00><00>]" % rights), "is encrypted")


def _costly() -> Iterator[tuple[str, tuple[bytes, str]]]:
    form = b"/Type/XObject/Subtype/Form/BBox[0 0 100 100]/Resources<</XObject<</X 5 0 R>>>>"
    yield "a form that draws itself", (written(b"/X Do", objects=[stream(b"/X Do /X Do", form)]), ENDED)
    yield "a tree of pages in a circle", (written().replace(b"/Kids[3 0 R]", b"/Kids[2 0 R]"), "")
    yield "deep arrays", (written(b"[" * 1_000_000), "")
    yield "far too many pages", (written().replace(b"/Count 1", b"/Count 2000000000"), "")
    yield "50,000 × 1", (written(box="0 0 50000 1"), "no side may be longer")
    yield "a kilometre square", (written(box="0 0 3000000 3000000"), TOO_MUCH)
    yield "a bomb of two gigabytes", (written(b"/X Do", objects=[stream(bomb(), form + b"/Filter/FlateDecode")]), ENDED)
    both = form + b"/Filter[/FlateDecode/FlateDecode]"
    yield "a bomb in a bomb", (written(b"/X Do", objects=[stream(zlib.compress(bomb()), both)]), ENDED)
    image = b"/Type/XObject/Subtype/Image/Width 100000/Height 100000/ColorSpace/DeviceRGB/BitsPerComponent 8"
    huge = stream(zlib.compress(bytes(1000)), image + b"/Filter/FlateDecode")
    yield "a picture of 10,000 million pixels", (written(b"100 0 0 100 0 0 cm /X Do", objects=[huge]), "")


def bomb() -> bytes:
    """Two gigabytes of zeros, deflated: one piece repeated, which refers to none before it."""
    deflate = zlib.compressobj(9)
    first, again = (deflate.compress(bytes(10_000_000)) + deflate.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + 200 * again


def slow() -> bytes:
    """PDF of half a million curves, each across the page."""
    return written(b" ".join(b"%d 0 m %d 9 77 8 %d 99 c S" % (i % 97, i % 83, i % 79) for i in range(500_000)))
