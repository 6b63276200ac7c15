"""Processor of families with two encoders: items are texts or images. No torch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from sie_triton.contract import Features
from sie_triton.contract.spec import Runtime
from sie_triton.contract.tensors import IMAGE, TEXT
from sie_triton.models.families.shared.text_or_image import TextOrImage, packed
from sie_triton.models.inputs.cutting import encoded
from sie_triton.models.inputs.pixels import Bytes, Resize


class TowerProcessor(TextOrImage):
    """Processor of such items for two encoders. `image_length` returns the cost of an image."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, resize: Resize, image_length: Callable[[Bytes], int], runtime: Runtime
    ) -> None:
        super().__init__(resize, runtime)
        self._tokenizer, self._image_length = tokenizer, image_length

    def encode(self, framed: Sequence[Any], *, is_query: bool = False) -> Features:
        images = [item.get(IMAGE.name) for item in framed]
        ids, cut = tokens_of_texts(self._tokenizer, framed)
        read = [len(of) if image is None else self._image_length(image) for image, of in zip(images, ids, strict=True)]
        return packed(read, cut, ids, images)


def tokens_of_texts(
    tokenizer: tokenizers.Tokenizer, items: Sequence[Any]
) -> tuple[list[Sequence[int]], npt.NDArray[np.bool_]]:
    """Return the tokens of each item, none of an item without a text, and whether they were truncated, bool [items]."""
    ids: list[Sequence[int]] = [()] * len(items)
    cut = np.zeros(len(items), np.bool_)
    texts = [i for i, item in enumerate(items) if TEXT.name in item]
    encodings = encoded(tokenizer, [items[i][TEXT.name] for i in texts]) if texts else []
    for i, encoding in zip(texts, encodings, strict=True):
        ids[i], cut[i] = encoding.ids, bool(encoding.overflowing)
    return ids, cut
