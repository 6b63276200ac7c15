"""Processors whose elements are images. No torch."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Ragged
from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import ORIGINAL_SIZES
from sie_triton.models.inputs.base import Processor
from sie_triton.models.inputs.images import ImageFile, ImageReader

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, slots=True)
class PreparedImage:
    """An image: `pixels` [height, width, 3] for the model, its original size upright, its name in messages."""

    pixels: npt.NDArray[Any]
    height: int
    width: int
    where: str


class ImageProcessor(Processor):
    """Base of processors of images, which `encode` gets as PreparedImage. Thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._images = ImageReader(runtime)

    @abstractmethod
    def pixels(self, image: "Image", where: str) -> npt.NDArray[Any]:
        """Return the pixels of an upright image for the model; raise InputError that begins with `where`."""

    def prepare(self, element: Any) -> Any:
        if not isinstance(element, ImageFile):
            return element
        with self._images.opened(element) as image:
            return PreparedImage(self.pixels(image, element.where), image.height, image.width, element.where)


def original_sizes(images: Sequence[PreparedImage]) -> dict[str, Ragged]:
    return {ORIGINAL_SIZES.name: Ragged(np.array([(each.height, each.width) for each in images], np.int32))}
