"""Images, and the labels to look for in each. No torch."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Label, Part, Ragged
from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import ORIGINAL_SIZES
from sie_triton.models.inputs.base import Frame, Processor
from sie_triton.models.inputs.images import ImageFile, ImageReader
from sie_triton.models.inputs.words import KEPT_PROMPTS, PromptedTexts

if TYPE_CHECKING:
    from PIL.Image import Image

P = TypeVar("P")


class LabelledImage(NamedTuple):
    """An image as the model reads it."""

    pixels: npt.NDArray[Any]  # [height, width, 3]
    size: tuple[int, int]  # height and width of the client's image, upright


class LabelledImages(Processor, Generic[P]):
    """Processor of images with labels; `encode` gets a prompt and a Picture for each item."""

    prepares = True

    def __init__(self, runtime: Runtime) -> None:
        self._images = ImageReader(runtime)
        self._kept = lru_cache(KEPT_PROMPTS)(self.prompt)

    @abstractmethod
    def pixels(self, image: "Image", where: str) -> npt.NDArray[Any]:
        """Return the pixels of an upright image; raise InputError that begins with `where`."""

    @abstractmethod
    def prompt(self, labels: tuple[Label, ...], template: str) -> P:
        """Return what the model reads of the labels; raise InputError naming a label."""

    def template(self, part: Part) -> str:
        """Return the template into which labels are put in place of {}; raise InputError if the request's is wrong."""
        return "{}"

    def is_slow(self, element: Any) -> bool:
        return isinstance(element, ImageFile)

    def prepare(self, element: Any) -> Any:
        if not isinstance(element, ImageFile):
            return element
        with self._images.opened(element) as image:
            return LabelledImage(self.pixels(image, element.where), (image.height, image.width))

    def frame(self, part: Part) -> Frame:
        super().frame(part)
        labels, template = tuple(part.labels), self.template(part)
        return PromptedTexts(lambda: self._kept(labels, template), 0)


def original_sizes(pictures: Sequence[LabelledImage]) -> dict[str, Ragged]:
    return {ORIGINAL_SIZES.name: Ragged(np.array([picture.size for picture in pictures], np.int32))}
