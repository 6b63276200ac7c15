"""Items that are either a text or an image."""

from typing import Any

from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import IMAGE
from sie_triton.models.inputs.base import Processor
from sie_triton.models.inputs.images import ImageFile, ImageReader
from sie_triton.models.inputs.pixels import Resize
from sie_triton.models.inputs.several import check_alone


class TextOrImage(Processor):
    """Base of processors of such items. An image is decoded and resized off Triton's thread; a text stays as it is."""

    prepares = True

    def __init__(self, resize: Resize, runtime: Runtime) -> None:
        self._resize, self._images = resize, ImageReader(runtime)

    def is_slow(self, element: Any) -> bool:
        return IMAGE.name in element

    def prepare(self, element: Any) -> Any:
        image = element.get(IMAGE.name)
        if not isinstance(image, ImageFile):
            return element
        check_alone(element, IMAGE.name)
        with self._images.opened(image) as picture:
            return {IMAGE.name: self._resize(picture)}
