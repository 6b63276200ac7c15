"""Items that are texts and images."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sie_triton.contract import Features, Ragged
from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import IMAGE, READ, TRUNCATED
from sie_triton.models.inputs.base import Processor
from sie_triton.models.inputs.images import ImageFile, ImageReader
from sie_triton.models.inputs.pixels import Bytes, Resize, packed_pixels
from sie_triton.models.inputs.several import check_alone
from sie_triton.models.inputs.tokenizer import packed_ids


class TextOrImage(Processor):
    """Base of processors of items that are either. An image is decoded and resized off Triton's thread."""

    def __init__(self, resize: Resize, runtime: Runtime) -> None:
        self._resize, self._images = resize, ImageReader(runtime)

    def prepare(self, element: Any) -> Any:
        image = element.get(IMAGE.name)
        if not isinstance(image, ImageFile):
            return element
        check_alone(element, IMAGE.name)
        with self._images.opened(image) as picture:
            return {IMAGE.name: self._resize(picture)}


def packed(
    read: npt.ArrayLike, cut: npt.ArrayLike, ids: Sequence[Sequence[int]], images: Sequence[Bytes | None]
) -> Features:
    """Return the features of items: their cost, whether the text was cut, the tokens and the image, if there is one."""
    lengths, is_cut = np.array(read, np.int32), np.array(cut, np.bool_)
    return {READ.name: Ragged(lengths), TRUNCATED.name: Ragged(is_cut), **packed_ids(ids), **packed_pixels(images)}
