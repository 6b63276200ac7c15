"""Image files → upright RGB pictures, within limits that are checked in the headers.

Pictures look as in transformers' image processors: transparent parts are white, Pillow converts palettes and CMYK, only
the first frame is read, and EXIF orientation is applied.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import IMAGE, QUERY_IMAGE
from sie_triton.errors import Cancelled, InputError
from sie_triton.models.inputs.decoding import FORMATS, PEAK_BYTES, open_image, peak_bytes, to_rgb
from sie_triton.models.inputs.files import File, FileInput
from sie_triton.models.inputs.limits import LIMITS
from sie_triton.models.inputs.pdf.document import Drawing, is_pdf
from sie_triton.system.host.file_locks import Line, LockFile

if TYPE_CHECKING:
    from PIL.Image import Image


class ImageFile(File):
    """An image file of a request."""


@dataclass(frozen=True, slots=True)
class Page(ImageFile):
    """A drawn page of a PDF; its content is the pixels of the drawing."""

    drawing: Drawing


class ImageInput(FileInput):
    """Image files."""

    file = ImageFile
    name = "image"
    tensors = (IMAGE, QUERY_IMAGE)
    nothing_read = "the model reads nothing of it; send another image"


class ImageReader:
    """Opens image files within the limits of `runtime`; thread-safe.

    The peak memory of decoding is bounded for all processes together that have the same `status_dir`, by locks on as
    many bytes of a file as the pictures take: a thread waits until its picture fits, in the order of arrival. A picture
    that exceeds the bound by itself is refused. Without a `status_dir` the bound is that of the reader.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        locks = LockFile(Path(runtime.status_dir, "images.memory")) if runtime.status_dir else LockFile.private()
        self._memory = Line(locks, 0, 1, 1 + runtime.max_decoded_bytes)

    @contextmanager
    def opened(self, file: ImageFile) -> Iterator["Image"]:
        """Yield the decoded picture, valid within the context. InputError says what is wrong with the file."""
        where = file.where
        if isinstance(file, Page):
            with self._drawn(file) as picture:
                yield picture
            return
        self._check_file(file)
        most = self._runtime.max_image_pixels
        with _blaming(where, most):
            image = open_image(file.content, where, most)
        with image:
            self._check_size(where, image.width, image.height)
            self._check_scans(file, image)
            with _blaming(where, most):
                taken = peak_bytes(image, where, most)
            with self._room(where, taken):
                with _blaming(where, most):
                    picture = to_rgb(image, where)
                yield picture

    @contextmanager
    def _drawn(self, page: Page) -> Iterator["Image"]:
        from PIL import Image

        drawing = page.drawing
        self._check_size(page.where, drawing.width, drawing.height)
        with self._room(page.where, drawing.width * drawing.height * PEAK_BYTES["page"]):
            size = (drawing.width, drawing.height)
            yield Image.frombuffer("RGB", size, drawing.pixels, "raw", "RGB", drawing.stride, 1)

    def _check_file(self, file: ImageFile) -> None:
        most = self._runtime.max_image_bytes
        if not file.content:
            raise InputError.at(file.where, "is empty; send an image file")
        if is_pdf(file.content):
            raise InputError.at(file.where, "is a PDF, which is only allowed for items; send an image")
        if len(file.content) > most:
            raise InputError.at(
                file.where, f"has {len(file.content)} bytes; send at most {most}, or raise max_image_bytes"
            )

    def _check_scans(self, file: ImageFile, image: "Image") -> None:
        # Each scan begins with a marker.
        num_scans = file.content.count(b"\xff\xda") if file.content.startswith(b"\xff\xd8") else 0
        is_progressive, num_pixels = "progressive" in image.info, image.width * image.height
        most = min(LIMITS.max_scans, LIMITS.max_scanned_pixels // num_pixels) if is_progressive else LIMITS.max_scans
        if num_scans > most:
            raise InputError.at(file.where, f"is a JPEG with {num_scans} scans; send one with at most {most}")

    def _check_size(self, where: str, width: int, height: int) -> None:
        most = self._runtime.max_image_pixels
        if width * height > most:
            raise InputError.at(where, f"has {width} × {height} pixels; send at most {most}, or raise max_image_pixels")
        side, aspect = LIMITS.max_image_side, LIMITS.max_image_aspect
        if max(width, height) > side or max(width, height) > aspect * min(width, height):
            allowed = f"no side may be longer than {side}, or than {aspect} times the other"
            raise InputError.at(where, f"has {width} × {height} pixels; {allowed}")

    @contextmanager
    def _room(self, where: str, taken: int) -> Iterator[None]:
        most = self._runtime.max_decoded_bytes
        if taken > most:
            raise InputError.at(
                where,
                f"takes {taken} bytes of memory to decode, and {most} are allowed; send a smaller image or "
                "another format, or raise max_decoded_bytes",
            )
        with self._memory.wait(taken):
            yield


@contextmanager
def _blaming(where: str, max_pixels: int) -> Iterator[None]:
    """Turn any exception of Pillow into an InputError about the file; our own errors pass."""
    try:
        yield
    except (InputError, Cancelled, MemoryError):
        raise
    except Exception as exc:
        if type(exc).__name__ == "DecompressionBombError":
            problem = f"has more than {max_pixels} pixels; send a smaller image, or raise max_image_pixels"
            raise InputError.at(where, problem) from exc
        said = str(exc).splitlines()[0][:120] if str(exc) else type(exc).__name__
        formats = ", ".join(FORMATS)
        # Pillow's message is replaced: it contains the repr of an object.
        if "cannot identify image file" in said:
            raise InputError.at(where, f"is not an image that can be read; send one of {formats}") from exc
        raise InputError.at(where, f"cannot be decoded ({said}); send a whole file, one of {formats}") from exc
