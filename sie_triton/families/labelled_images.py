"""Images, and the labels that are looked for in each. No torch."""

from abc import abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Label, Part, Ragged
from sie_triton.contract.tensors import ORIGINAL_SIZES
from sie_triton.inputs.base import Frame, Processor
from sie_triton.inputs.images import ImageFile, ImageReader
from sie_triton.inputs.words import KEPT_PROMPTS, Asked
from sie_triton.spec import Runtime

if TYPE_CHECKING:
    from PIL.Image import Image

P = TypeVar("P")


class Picture(NamedTuple):
    """`pixels` [height, width, 3] as the model reads them; `size`, height and width, of the upright image sent."""

    pixels: npt.NDArray[Any]
    size: tuple[int, int]


class LabelledImages(Processor, Generic[P]):
    """`encode` gets a prompt and a Picture of each item."""

    prepares = True

    def __init__(self, runtime: Runtime) -> None:
        self._images = ImageReader(runtime)
        self._kept = lru_cache(KEPT_PROMPTS)(self.prompt)

    @abstractmethod
    def pixels(self, image: "Image", where: str) -> npt.NDArray[Any]:
        """Of an upright picture; InputError begins with `where`."""

    @abstractmethod
    def prompt(self, labels: tuple[Label, ...], template: str) -> P:
        """What the model reads of labels; InputError names one."""

    def template(self, part: Part) -> str:
        """What a label is put into, where {} stands. InputError."""
        return "{}"

    def is_slow(self, element: Any) -> bool:
        return isinstance(element, ImageFile)

    def prepare(self, element: Any) -> Any:
        if not isinstance(element, ImageFile):
            return element
        with self._images.opened(element) as image:
            return Picture(self.pixels(image, element.where), (image.height, image.width))

    def frame(self, part: Part) -> Frame:
        super().frame(part)
        labels, template = tuple(part.labels), self.template(part)
        return Asked(lambda: self._kept(labels, template), 0)


def original_sizes(pictures: Sequence[Picture]) -> dict[str, Ragged]:
    return {ORIGINAL_SIZES.name: Ragged(np.array([picture.size for picture in pictures], np.int32))}
